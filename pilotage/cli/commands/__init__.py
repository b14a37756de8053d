"""The commands that people type, as clients of the service or on files: one module a noun."""
