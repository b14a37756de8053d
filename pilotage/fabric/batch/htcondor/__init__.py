"""HTCondor as a batch system: its commands, and the event logs of its jobs."""
