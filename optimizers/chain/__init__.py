"""The chain: its steps in order, their outcomes, a batch of jobs through it, and what is remembered of it."""
