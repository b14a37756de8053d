"""The configuration for a caller: its rights, its audited changes, and answers of the HTTP interface.

Long lists of a preview are cut, and jobs of other VOs are only counted.
"""

import time
from collections.abc import Collection, Sequence
from functools import partial
from typing import Any, Final

from cs_config.editing import history, permissions
from cs_config.editing.editor import ConfigEditor, StoredChange, Transactions
from cs_config.editing.permissions import Rights
from cs_config.editing.proposals import Proposal
from cs_config.editing.reverts import Revert
from cs_config.options.registry import Registry
from cs_config.source import diff
from cs_config.source.diff import ABSENT, Difference
from cs_config.tree.address import QueueAddress
from cs_config.tree.configuration import Configuration
from matcher.preview import impacts
from matcher.preview.impacts import BlamedParameter
from matcher.preview.outlook import Outlook
from matcher.preview.shifts import ClassShift, PoolShift
from pilotage.service.auth import audit
from pilotage.service.auth.callers import Caller, Role
from pilotage.service.auth.rate_limits import RequestRate
from pilotage.service.models.config import (
    ClassPreview,
    DifferenceAnswer,
    PoolPreview,
    PreviewAnswer,
    TemporaryValue,
    WarningPreview,
)
from pilotage.service.queries import explanations
from pilotage.service.services import Services
from requirements.errors import Problem
from taskqueue.db import clock, database

#: Changes of the configuration by one caller.
_CHANGES: Final = RequestRate(per_second=1 / 30, burst=30)
#: Most entries of a list.
_MOST: Final = 100
#: Most queues named in one entry.
_MOST_QUEUES: Final = 10
#: Characters of paths in one line of the audit log.
_AUDITED_CHARACTERS: Final = 4000


def editor_of(parts: Services, caller: Caller) -> ConfigEditor:
    """Build the editor that acts with the caller's rights; what it stores is audited."""
    return ConfigEditor(
        transactions=Transactions(
            reading=partial(database.reading, parts.engine),
            writing=partial(database.writing, parts.engine),
            after_commit=database.after_commit,
            read_time=lambda conn: clock.read_time(conn, parts.clock()),
        ),
        live=parts.live,
        clock=parts.clock,
        author=caller.author,
        rights=rights_of(caller, parts.live.current.registry),
        audit=partial(_audit, caller),
        count_change=partial(_count_change, parts, caller),
    )


def blame_values(
    parts: Services, editor: ConfigEditor, config: Configuration, *, path: str, vo: str | None
) -> list[BlamedParameter]:
    """The visible values at and below a path, those of a queue with the jobs that they exclude."""
    return impacts.blame_values(editor, config, partial(explanations.classes, parts), path=path, vo=vo)


def _count_change(parts: Services, caller: Caller) -> None:
    """Count a change of a caller; `TooManyRequests` beyond the rate.

    Each is a version, which every process reads, and for which the pools are refreshed.
    """
    if not caller.is_operator:
        parts.rates.take(f"configuration of {caller.subject}", _CHANGES, now=time.monotonic())


def rights_of(caller: Caller, registry: Registry) -> Rights:
    """The caller's rights on a configuration with these owner groups."""
    return permissions.rights_on(
        registry,
        everything=caller.is_operator,
        sees=caller.visible_vos or frozenset(),
        vos=frozenset().union(*(one.vos for one in caller.each if one.role is Role.VO_ADMIN)),
        sites=caller.own_sites,
    )


def _audit(caller: Caller, change: StoredChange) -> None:
    paths = ", ".join(diff.list_paths(change.differences))[:_AUDITED_CHARACTERS]
    audit.done(caller, "configuration", version=change.version, message=change.message, paths=paths)


def preview(editor: ConfigEditor, proposal: Proposal, outlook: Outlook) -> PreviewAnswer:
    """Convert an outlook, as far as the author may see it."""
    warnings = editor.visible_problems(proposal.warnings, proposal.after)

    def may_read(vo: str) -> bool:
        return editor.rights.everything or vo in editor.rights.sees

    return PreviewAnswer(
        version=proposal.before.version,
        changes=[difference(each) for each in proposal.differences[:_MOST]],
        **convert_warnings(warnings),
        totals=dict(outlook.totals),
        new_queues=_names(outlook.new, _MOST),
        removed_queues=_names(outlook.removed, _MOST),
        jobs=outlook.jobs,
        classes=[
            _class(each, readable=may_read(each.waiting.asked.vo))
            for each in outlook.classes
            if each.stuck or each.freed
        ][:_MOST],
        pools=[_pool(each) for each in outlook.pools if may_read(each.vo)][:_MOST],
        running=list(outlook.lost_work[:_MOST]),
        closed=list(outlook.closed_places[:_MOST]),
        floors=list(outlook.lowered_floors[:_MOST]),
        temporary=[temporary(each) for each in history.list_ended_returns(editor, proposal)][:_MOST],
        order=[each for each in outlook.types if may_read(each.vo)][:_MOST],
        in_vain=[each for of_vo in outlook.useless_parameters.values() for each in of_vo[:_MOST]],
        left_out=outlook.left_out,
    )


def convert_warnings(warnings: Sequence[Problem]) -> dict[str, Any]:
    """Convert the first warnings, and count the others: two fields of an answer."""
    shown = [WarningPreview.model_validate(each) for each in warnings[:_MOST]]
    return {"warnings": shown, "more_warnings": len(warnings) - len(shown)}


def difference(found: Difference) -> DifferenceAnswer:
    """Convert a difference; an absent side is left unset."""
    fields: dict[str, Any] = found.as_json()
    return DifferenceAnswer(**fields)


def temporary(revert: Revert) -> TemporaryValue:
    """Convert a value to be reverted; absent sides are left unset."""
    sides = {"value": revert.after, "restored": revert.before}
    fields: dict[str, Any] = {name: side for name, side in sides.items() if side is not ABSENT}
    return TemporaryValue(
        path=revert.path,
        **fields,
        reverts_at=revert.due,
        version=revert.version,
        author=revert.author,
        problem=revert.problem,
    )


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
