"""Findings of checks, their severity, and the input of a check."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from enum import StrEnum
from pathlib import Path

from cs_config.tree.configuration import Configuration
from pilotage.service.auth.callers import Caller
from taskqueue.jobs.optimizer_queue import OptimizerQueueState


class Health(StrEnum):
    """Severity of a finding."""

    GOOD = "good"
    NOTE = "note"  #: as it should be, and keeps jobs waiting
    WARNING = "warning"  #: works, but not as it should
    BAD = "bad"  #: does not work, or is dangerous

    @property
    def is_problem(self) -> bool:
        """Whether somebody should act."""
        return self in (Health.WARNING, Health.BAD)


@dataclass(frozen=True, slots=True)
class Finding:
    """The result of one check."""

    subject: str
    health: Health
    message: str
    remedy: str = ""  #: what to do; commands between `. Each problem has one
    link: str = ""  #: path of the page that shows more
    vos: tuple[str, ...] = ()  #: whose jobs it is about, where it says so


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckScope:
    """What checks look at, and for whom."""

    caller: Caller
    config: Configuration
    now: datetime
    configuration_fault: str | None = None  #: why the newest version cannot be used
    optimizers: OptimizerQueueState | None = None  #: None: there is no Redis, or it is checked elsewhere
    #: Conditions for a process to be ready, each `ok` or the problem.
    readiness: Mapping[str, str] = field(default_factory=dict)
    certificate: Path | None = None  #: PEM, of the process that answers; None: none, or checked elsewhere
    is_replica_used: bool | None = None  #: None: the same
    find_storage_fault: Callable[[], str | None] = lambda: None  #: why no archive can be stored

    def narrowed_to(self, caller: Caller) -> "CheckScope":
        """The same for another caller."""
        return self if caller is self.caller else replace(self, caller=caller)


#: Findings of one subject that are listed.
MOST_LISTED = 20


def list_first(
    subject: str, health: Health, messages: Sequence[str], further: str, remedy: str, *, link: str = ""
) -> list[Finding]:
    """A finding for each of the first messages, and the number of the others."""
    listed = [Finding(subject, health, each, remedy, link) for each in messages[:MOST_LISTED]]
    if (more := len(messages) - MOST_LISTED) > 0:
        listed.append(Finding(subject, health, f"{more} {further}", remedy, link))
    return listed
