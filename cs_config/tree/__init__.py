"""The resource tree as a value: levels, inheritance, parameters, expiry, and what queues ask of jobs."""
