"""Queues that are equal for a VO, and which of them requirements fit."""
