"""Finding out about the slot and its node what was not told."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import replace

from pilotage.fabric.pilot import cpu_power, facts, probes, slot_end
from pilotage.fabric.pilot.settings import Slot

log = logging.getLogger(__name__)


def of_slot(
    slot: Slot, environment: Mapping[str, str], *, now: float, measured: Mapping[str, object] | None = None
) -> Slot:
    """The slot with all that can be found out here; what was told stays.

    Args:
        slot: As it was told.
        environment: The one that the batch system gave us.
        now: Seconds since the epoch.
        measured: Facts about the node; None: they are measured.
    """
    known = facts.measured() if measured is None else measured
    found = probes.run(slot.probes, environment) if slot.probes else probes.Found()
    power = cpu_power.measured() if slot.measures_cpu else slot.cpu_power
    if slot.measures_cpu:
        log.info("a processor of this node has the power %g", power)
    slot = _with_node(slot, known) if slot.whole_node else slot
    return replace(
        slot,
        lifetime=slot.lifetime or slot_end.seconds_left(environment, now),
        cpu_power=power,
        tags=(*slot.tags, *found.tags),
        facts=facts.merged(known, found.facts, slot.facts),
    )


def _with_node(slot: Slot, known: Mapping[str, object]) -> Slot:
    """The slot with what its node has where nothing else was told."""
    return replace(
        slot,
        processors=slot.processors or _number(known, "Cores"),
        max_ram=slot.max_ram or _number(known, "Memory"),
        gpus=slot.gpus or _number(known, "GPUs"),
    )


def _number(known: Mapping[str, object], name: str) -> int | None:
    number = known.get(name)
    return number if isinstance(number, int) else None
