"""Replay of a recorded day: what would have been, had the configuration been another one.

`recorded_day` reads a day, `replay_database` puts it into an empty database of its own, `simulation` lets the
matcher of the program hand out its jobs again, `comparison` sets the figures side by side.
"""
