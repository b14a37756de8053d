"""Who answers a call while a DIRAC moves VO by VO: this installation, the former services, or both.

| call | answered |
|---|---|
| submission | here if the VO has moved, else there |
| about jobs | where they are, by their ids; a list that names both is split, and the answers joined |
| `requestJob` | here first, then there: a pilot takes jobs of both |
| lists of jobs, task queues | by both, joined |
| methods that we do not have | there |
"""

import logging
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Final

from pilotage.plugins.dirac import jencode
from pilotage.plugins.dirac.former import FormerAway, FormerServices, UnknownThere, split_ids
from pilotage.plugins.dirac.jencode import Result
from pilotage.service import deadline
from pilotage.service.http_errors import NotAuthenticated
from requirements.errors import PilotageError
from taskqueue.db import database

_log = logging.getLogger(__name__)

#: Answers a call by one of the two, with its arguments.
Answer = Callable[[Sequence[object]], Awaitable[Result]]

_MANAGER, _MATCHER = "/WorkloadManagement/JobManager", "/WorkloadManagement/Matcher"
#: The services that must have former ones, if there are any.
SHARED: Final = frozenset(
    {_MANAGER, _MATCHER, "/WorkloadManagement/JobMonitoring", "/WorkloadManagement/JobStateUpdate"}
)
_OURS: Final = frozenset({"ping", "whoami"})
#: Lists by both; the first argument of all other methods is an id, or names several.
_LISTS: Final = frozenset({"getJobs", "getActiveTaskQueues", "getMatchingTaskQueues"})
_FAILURES: Final = (PilotageError, *database.UNAVAILABLE)
_FAILURES_THERE: Final = (FormerAway, NotAuthenticated, UnknownThere)


async def answer_call(
    former: FormerServices,
    path: str,
    method: str,
    arguments: Sequence[object],
    *,
    here: Answer | None,
    there: Answer,
    has_moved: bool,
) -> Result:
    """The result of a call; `here` is None for a method that we do not have.

    `has_moved`: whether the jobs that the peer submits come here. Errors are those of the two.
    """
    if here is None:
        return await there(arguments)
    if method in _OURS:
        return await here(arguments)
    if method == "submitJob":
        return await (here if has_moved else there)(arguments)
    if path == _MATCHER and method == "requestJob":
        return await _request_job(arguments, here=here, there=there, has_moved=has_moved)
    if method in _LISTS:
        return await _list(former, method, arguments, here=here, there=there, has_moved=has_moved)
    ours, theirs = split_ids(arguments[0] if arguments else None, former.first_job_id)
    if theirs is None:
        return await here(arguments)
    if ours is None:
        return await there(arguments)
    join = _join_changes if path == _MANAGER else _join_tables
    parts = [(ours, here), (theirs, there)]
    return join([(ids, await _try(answer, [ids, *arguments[1:]])) for ids, answer in parts])


async def _try(answer: Answer, arguments: Sequence[object]) -> Result:
    """A result; a refusal, too, so that what the other part has changed is reported."""
    try:
        return await answer(arguments)
    except PilotageError as refusal:
        return jencode.error(str(refusal))


async def _request_job(
    arguments: Sequence[object], *, here: Answer, there: Answer, has_moved: bool
) -> Result:
    """A job from here; without one, whatever the reason, one from there."""
    try:
        ours = await here(arguments)
    except _FAILURES as fault:
        _log.info("no job was requested here: %s", fault)
        if deadline.is_abandoned():  # nobody would get the job from there
            raise
        try:
            return await there(arguments)
        except _FAILURES_THERE:
            raise fault from None
    if ours["OK"] or deadline.is_abandoned():
        return ours
    try:
        theirs = await there(arguments)
    except _FAILURES_THERE:
        return ours
    return ours if has_moved and not theirs["OK"] else theirs


async def _list(
    former: FormerServices,
    method: str,
    arguments: Sequence[object],
    *,
    here: Answer,
    there: Answer,
    has_moved: bool,
) -> Result:
    """What both list; a list that lacks one part is only for VOs that are at the other, and for directors."""
    is_for_directors = method != "getJobs"
    try:
        ours = await here(arguments)
    except _FAILURES as fault:
        if has_moved and not is_for_directors:
            raise
        _log.info("only the former services list: %s", fault)
        return await there(arguments)
    if not ours["OK"]:
        return ours if has_moved and not is_for_directors else await there(arguments)
    try:
        theirs = await there(arguments)
    except _FAILURES_THERE as fault:
        if not is_for_directors:
            raise
        _log.info("only this installation lists: %s", fault)
        return ours
    if not theirs["OK"]:
        return ours if is_for_directors else theirs
    if method == "getJobs":
        return jencode.ok(sorted({*map(str, _listed(ours)), *map(str, _listed(theirs))}, key=_numerically))
    queues: Any = ours["Value"]
    first = former.first_job_id
    return jencode.ok({**_table(theirs), **{str(first + int(name)): queues[name] for name in queues}})


def _listed(result: Result) -> list[object]:
    value = result["Value"]
    return value if isinstance(value, list) else []


def _numerically(text: str) -> tuple[int, str]:
    return len(text), text


def _table(result: Result) -> dict[str, object]:
    value = result.get("Value")
    return {str(name): each for name, each in value.items()} if isinstance(value, dict) else {}


def _join_tables(parts: Sequence[tuple[object, Result]]) -> Result:
    """One table by id; an error if a part has failed, since its jobs would seem not to exist."""
    results = [result for _, result in parts]
    for each in results:
        if not each["OK"]:
            return each
    if not any(isinstance(each.get("Value"), dict) for each in results):
        return jencode.ok()
    return jencode.ok({name: value for each in results for name, value in _table(each).items()})


def _join_changes(parts: Sequence[tuple[object, Result]]) -> Result:
    """What was changed in either part; the ids of a part that failed as a whole are failed ones."""
    lists: dict[str, list[object]] = {}
    done: list[object] = []
    for ids, result in parts:
        named = {name: value for name, value in result.items() if name.endswith("JobIDs")}
        if result["OK"]:
            done += _listed(result)
        elif not named:
            named = {"FailedJobIDs": ids}
        for name, value in named.items():
            lists.setdefault(name, []).extend(value if isinstance(value, list) else [])
    if not any(result["OK"] for _, result in parts):
        [(_, first), *_] = parts
        return {**first, **lists}
    needs_proxy = any(bool(result.get("requireProxyUpload")) for _, result in parts)
    return jencode.ok(done, requireProxyUpload=needs_proxy, **lists)
