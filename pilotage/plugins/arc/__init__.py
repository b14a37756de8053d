"""ARC CE as a batch system: its REST interface, job descriptions, and queue information."""
