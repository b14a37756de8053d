"""Why a job does not run and what would change that, for one job or one queue."""
