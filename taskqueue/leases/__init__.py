"""Leases: claims of waiting jobs, attempts, reports of pilots, and expiry.

Imports db, schema, jobs, sites and task_queues.
"""
