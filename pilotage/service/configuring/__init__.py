"""The configuration for somebody: what the HTTP interface and the pages show and change."""
