"""Reads and changes shared by routes and pages, with a caller's rights."""
