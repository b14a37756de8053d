"""The built-in steps of the chain."""
