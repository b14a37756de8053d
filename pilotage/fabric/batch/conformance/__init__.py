"""What every batch system is held to: checks, the bench that they run on, and faults on the way."""
