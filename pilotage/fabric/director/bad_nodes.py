"""Nodes of batch systems that new pilots are kept from, since the last pilot there broke. Pure.

Batch systems send most pilots to idle nodes, and a node that breaks each pilot at once is always idle.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta

from pilotage.fabric.director import recorded_pilots
from pilotage.fabric.director.recorded_pilots import DirectorPilot
from pilotage.fabric.director.targets import Trial

#: So often a pilot may try a node where the last one broke; after that long without one, it is forgotten.
_TRIAL_EVERY, _FORGOTTEN = timedelta(minutes=5), timedelta(hours=1)
#: Nodes in one submission.
_MOST = 50


@dataclass(frozen=True, slots=True, kw_only=True)
class BadNodes:
    """Nodes where the last pilot broke, the latest first."""

    lately: tuple[str, ...] = ()  #: less than some minutes ago: no pilot is sent there
    due: tuple[str, ...] = ()  #: one pilot may try

    def avoided_by(self, number: int) -> tuple[str, ...]:
        """The nodes that one of several new pilots avoids: the first one, 0, may try those that are due."""
        return self.lately if number == 0 else (*self.lately, *self.due)


def find_bad_nodes(pilots: Iterable[DirectorPilot], nodes: Mapping[str, str], now: datetime) -> BadNodes:
    """The bad nodes of a queue, by the pilots of a VO there; `nodes` are those of the pilots, by stamp."""
    last: dict[str, Trial] = {}
    for pilot in pilots:
        if (node := nodes.get(pilot.stamp)) is None:
            continue
        trial = recorded_pilots.read_trial(pilot, now)
        if trial is None or trial.good is None or trial.empty:
            continue
        if node not in last or trial.known_at >= last[node].known_at:
            last[node] = trial
    bad = sorted((now - trial.known_at, node) for node, trial in last.items() if not trial.good)
    recent = [(age, node) for age, node in bad if age < _FORGOTTEN][:_MOST]
    return BadNodes(
        lately=tuple(node for age, node in recent if age < _TRIAL_EVERY),
        due=tuple(node for age, node in recent if age >= _TRIAL_EVERY),
    )
