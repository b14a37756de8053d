"""Job managers: turn a grid job into local jobs of a batch system, and their results into one."""
