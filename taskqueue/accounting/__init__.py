"""What happened, summed: every change of a job's status is read once, and counted exactly once."""
