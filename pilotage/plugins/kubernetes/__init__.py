"""Kubernetes as a batch system: pilots as Jobs of one namespace."""
