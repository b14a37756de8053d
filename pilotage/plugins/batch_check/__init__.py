"""Conformance kit for batch systems: `pilotage-batch-check`, its checks, the bench, and fault injection."""

from pilotage.extensions import Plugin

#: Without commands below `pilotage`: it has a script of its own.
PLUGIN = Plugin(package=__name__)
