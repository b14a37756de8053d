"""Command line, settings, the wiring of the parts, and the embedded mode."""

from pilotage.cli.application import main

__all__ = ["main"]
