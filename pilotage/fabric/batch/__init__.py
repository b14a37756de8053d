"""Batch systems behind one interface, to which directors and job managers submit."""
