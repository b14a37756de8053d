"""Real processes of ours, started by their command line, killed and started again."""

from examples.servers.supervised import PILOTAGE, Supervised

__all__ = ["PILOTAGE", "Supervised"]
