"""Retention agent: deletes old data, and drops old partitions of the job log."""
