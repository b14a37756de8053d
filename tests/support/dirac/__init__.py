"""Genuine parts of DIRAC: its clients, its services, its job descriptions."""
