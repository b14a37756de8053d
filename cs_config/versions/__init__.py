"""Versions of the configuration in the database: store, diff, patch, draft, proposal, permissions."""
