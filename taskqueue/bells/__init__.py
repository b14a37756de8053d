"""Bells between processes: who commits something that others follow rings, and they look at once."""
