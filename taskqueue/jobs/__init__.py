"""Jobs: submission, states and transitions, log, search, control and wait times.

Imports db, schema, leases and task_queues.
"""
