"""Loops that keep things moving: pools fresh, lost jobs back, old rows gone."""
