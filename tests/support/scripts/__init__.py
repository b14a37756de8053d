"""Processes that tests start, and some kill: `python -m tests.support.scripts.NAME`."""
