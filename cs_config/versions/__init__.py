"""Versions of the configuration in the database, and the one in force."""
