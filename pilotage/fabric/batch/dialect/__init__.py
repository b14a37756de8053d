"""Batch systems defined by data: the names of their commands, and patterns for their output."""
