"""Hostile inputs at the parsers and over HTTP, for as long as one wants.

`mutations` makes them, `parsers` has what outsiders can write and who reads it, `interface` a service in a
process of its own and requests of every role.

    python -m tests.acceptance.fuzzing --parsers 1000000 --requests 100000 --seed 1

A flaw is printed with its number and a shortened input; `--first NUMBER` begins there again.
"""
