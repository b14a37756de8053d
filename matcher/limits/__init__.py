"""What holds at a place at the moment of a claim.

Admission by its queues, bans, running limits, delays and throttles.
"""
