"""Conformance kit for batch systems: `pilotage-batch-check`, its checks, the bench, and fault injection."""
