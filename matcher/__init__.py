"""Give a pilot the job that its resource may run, exactly once."""
