"""The pilot: runs in a batch slot, pulls jobs and executes them. Standard library only, Python 3.9+."""
