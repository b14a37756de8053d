"""SubmitPools, queue classes, and the mapping of pools to queues.

Imports db, schema, jobs and task_queues.
"""
