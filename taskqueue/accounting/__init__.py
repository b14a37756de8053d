"""Accounting: job counts, resource usage and wait times by hour, summed once from the job log.

Imports db, schema, jobs and the change feed of task_queues.
"""
