"""Submission of jobs, and the chain of steps that prepares them for matching."""
