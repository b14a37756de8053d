"""Effects of a proposed configuration on waiting jobs, pools, pilots and running jobs."""
