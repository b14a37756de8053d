"""Sites, CEs and queues: advertisements, reservations, bans, matching delays and occupancy.

Imports db and schema.
"""
