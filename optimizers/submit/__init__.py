"""A submission below HTTP: who submits, checks, storage, dry run."""
