"""Slurm as a batch system: its commands and their options."""
