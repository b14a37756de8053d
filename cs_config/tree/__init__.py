"""The resource tree as a value: levels, inheritance, parameters, expiry, and admission rules of queues."""
