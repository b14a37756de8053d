"""The chain that checks a submitted job and makes it ready to wait for a pilot."""
