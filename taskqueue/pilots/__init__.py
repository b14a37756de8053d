"""Pilots: registration, status, search, one-time secrets and stored output.

Imports db and schema.
"""
