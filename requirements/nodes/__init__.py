"""Attributes that differ between nodes.

Partial evaluation at the queue, and flags for the batch system.
"""
