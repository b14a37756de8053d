"""ARC CE as a batch system: its REST interface, its job descriptions, what it says of its queues."""
