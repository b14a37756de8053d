"""Pilotage: a DIRAC-style task queue and pilot matcher."""
