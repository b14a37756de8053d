"""Measurements: each prints a table, writes JSON, and measures its reference in the same run."""
