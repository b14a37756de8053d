"""Previews for HTTP: long lists are cut, and jobs of other VOs are only counted."""

from collections.abc import Collection, Iterable, Iterator
from dataclasses import asdict
from typing import Any, Final

from cs_config.tree.address import QueueAddress
from cs_config.tree.configuration import Configuration
from cs_config.versions.diff import Difference
from cs_config.versions.permissions import Rights
from cs_config.versions.proposals import Proposal
from matcher.preview.outlook import Outlook
from matcher.preview.shifts import ClassShift, PoolShift
from pilotage.service.auth.callers import Caller
from pilotage.service.configuring import in_force
from pilotage.service.models.config import (
    ClassPreview,
    ClosedPreview,
    DifferenceAnswer,
    GoingPreview,
    PoolPreview,
    PreviewAnswer,
    VainPreview,
    VoPreview,
    WarningPreview,
)
from requirements.errors import Problem

#: Most entries of a list.
_MOST: Final = 100
#: Most queues named in one entry.
_MOST_QUEUES: Final = 10


def answer(proposal: Proposal, outlook: Outlook, caller: Caller) -> PreviewAnswer:
    """Convert an outlook, as far as the caller may see it."""
    return PreviewAnswer(
        version=proposal.before.version,
        changes=[difference(each) for each in proposal.differences[:_MOST]],
        warnings=list(_warnings(proposal, caller))[:_MOST],
        totals=dict(outlook.totals),
        new_queues=_names(outlook.new, _MOST),
        removed_queues=_names(outlook.removed, _MOST),
        jobs={vo: VoPreview(**asdict(each)) for vo, each in outlook.jobs.items()},
        classes=list(_classes(outlook, caller))[:_MOST],
        pools=[_pool(each) for each in outlook.pools if caller.may_read(each.vo)][:_MOST],
        running=[
            GoingPreview(queue=str(each.queue), vo=each.vo, why=each.why, jobs=each.jobs, pilots=each.pilots)
            for each in outlook.lost_work[:_MOST]
        ],
        closed=[ClosedPreview(scope=each.scope, why=each.text) for each in outlook.closed_places[:_MOST]],
        in_vain=[
            VainPreview(vo=vo, name=each.name, queues=each.queues, jobs=each.jobs)
            for vo, these in outlook.useless_parameters.items()
            for each in these[:_MOST]
        ],
    )


def difference(found: Difference) -> DifferenceAnswer:
    """Convert a difference; an absent side is left unset."""
    fields: dict[str, Any] = found.as_json()
    return DifferenceAnswer(**fields)


def _warnings(proposal: Proposal, caller: Caller) -> Iterator[WarningPreview]:
    for each in visible_outlook(proposal.warnings, proposal.after, in_force.rights_of(caller)):
        yield WarningPreview(path=each.path, message=each.message, suggestion=each.suggestion, line=each.line)


def visible_outlook(problems: Iterable[Problem], config: Configuration, allowed: Rights) -> Iterator[Problem]:
    """The problems at paths that the caller may see."""
    return (each for each in problems if allowed.sees_path(config, tuple(each.path.split("/"))))


def _classes(outlook: Outlook, caller: Caller) -> Iterator[ClassPreview]:
    for each in outlook.classes:
        if each.stuck or each.freed:
            yield _class(each, readable=caller.may_read(each.waiting.asked.vo))


def _class(found: ClassShift, *, readable: bool) -> ClassPreview:
    queues = found.shift.lost if found.stuck else found.shift.gained
    return ClassPreview(
        vo=found.waiting.asked.vo,
        jobs=found.waiting.jobs,
        example_job=found.waiting.first_job if readable else None,
        becomes="stuck" if found.stuck else "freed",
        queues=_names(queues, _MOST_QUEUES),
    )


def _pool(found: PoolShift) -> PoolPreview:
    return PoolPreview(
        pool=found.pool_id,
        vo=found.vo,
        waiting=found.waiting,
        gains=len(found.shift.gained),
        gained=_names(found.shift.gained, _MOST_QUEUES),
        loses=len(found.shift.lost),
        lost=_names(found.shift.lost, _MOST_QUEUES),
        without_queue=not found.shift.has,
    )


def _names(queues: Collection[QueueAddress], most: int) -> list[str]:
    return [str(each) for each in sorted(queues)[:most]]
