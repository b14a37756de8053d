"""The HTTP interface: translates between HTTP and the packages below, decides nothing."""
