"""Reports on jobs: counts, resource usage and wait times by hour, depths of queues.

They read the job log and the attempts, and stand above what they report on.
"""
