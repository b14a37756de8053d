"""Submission below HTTP: submitter, checks, storage, dry run."""
