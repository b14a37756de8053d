"""Task queues, requirement classes, shares, weights, and the change feed of the matchers.

Imports db and schema.
"""
