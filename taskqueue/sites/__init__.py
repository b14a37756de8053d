"""Sites, CEs and queues.

Advertisements, reservations, bans, matching delays and occupancy.  Imports db and schema.
"""
