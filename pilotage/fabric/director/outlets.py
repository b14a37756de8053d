"""Where a director sends its pilots: queues of the resource tree with the batch queues behind them."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import timedelta

from pilotage.fabric.batch.batch_system import Resources
from pilotage.fabric.batch.idealizer import Idealized
from pilotage.fabric.director.experience import Pause


@dataclass(frozen=True, slots=True, kw_only=True)
class Outlet:
    """A queue of the resource tree, and how it is reached."""

    queue: str  #: `Site/CE/Queue`
    system: str  #: name of its batch system
    batch_queue: str  #: what the queue is called there
    resources: Resources = field(default_factory=Resources)
    flags: tuple[str, ...] = ()  #: arguments of every submission, beside those that jobs ask for


@dataclass(frozen=True, slots=True, kw_only=True)
class Intent:
    """A pilot that is about to be submitted."""

    stamp: str
    vo: str
    outlet: Outlet
    pools: tuple[str, ...]  #: SubmitPools that it is sent for; none: what its queue serves
    secret: str = field(repr=False)  #: for which it gets its token, once


#: Makes the text that the batch system runs.
PilotScript = Callable[[Intent], str]


@dataclass(frozen=True, slots=True, kw_only=True)
class Habits:
    """How a director goes about it."""

    name: str  #: part of every stamp: two directors must not share it
    at_once: int = 100  #: pilots per queue and cycle at most
    pause: Pause = field(default_factory=Pause)
    soon: timedelta = timedelta(minutes=15)  #: a running pilot that is free so soon counts as being there
    memory: timedelta = timedelta(days=1)  #: how long pilots that ended are looked at
    keep_output: timedelta = timedelta(hours=6)  #: of pilots that failed
    grace: timedelta = timedelta(minutes=2)  #: that a batch job may go on after its pilot said that it ends


@dataclass(frozen=True, slots=True, kw_only=True)
class Sites:
    """All outlets and batch systems of one director."""

    outlets: Mapping[str, Outlet]  #: by queue
    systems: Mapping[str, Idealized]  #: by name
    habits: Habits
    script: PilotScript = field(repr=False)
