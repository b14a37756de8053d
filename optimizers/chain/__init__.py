"""The optimizer chain: steps and outcomes, batches of jobs, cached results."""
