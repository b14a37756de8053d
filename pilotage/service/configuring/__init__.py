"""Reading and changing the configuration with a caller's rights, for the HTTP interface and the pages."""
