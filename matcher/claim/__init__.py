"""From a request to claimed jobs.

The worker thread, the snapshot that it decides with, the claim and what follows it.
"""
