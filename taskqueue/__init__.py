"""Durable state: jobs, task queues, submit pools, attempts, pilots and blobs in the database."""
