"""A payload from its preparation to its output.

Work area, isolation, supervision, limits; standard library only.
"""
