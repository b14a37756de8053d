"""Stand-ins of the commands of batch systems."""
