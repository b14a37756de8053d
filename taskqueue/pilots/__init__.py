"""Pilots: registration, status, search, one-use secrets and stored output.

Imports db and schema.
"""
