"""What differs from node to node.

Node attributes, partial evaluation, and what a batch system can be told of it.
"""
