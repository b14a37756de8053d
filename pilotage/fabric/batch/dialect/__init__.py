"""Batch systems that are data: what their commands are called, and how what they say is read."""
