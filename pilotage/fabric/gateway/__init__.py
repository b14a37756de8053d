"""Gateways: pull grid jobs from the service for a job manager, keep their leases, deliver the results."""
