"""Payloads: work area, preparation, isolation, supervision, limits, output; standard library only."""
