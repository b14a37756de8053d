"""Classes of queues with equal parameters for a VO, and an index from requirements to eligible classes."""
