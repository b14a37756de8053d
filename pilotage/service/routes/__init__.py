"""The routes of the interface, one file a noun."""
