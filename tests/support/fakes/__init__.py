"""Stand-ins of services and batch systems, in memory or as commands."""
