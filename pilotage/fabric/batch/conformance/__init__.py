"""Conformance kit for batch systems: checks, the bench that runs them, and fault injection."""
