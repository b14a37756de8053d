"""Values of filters that are probably misspelt: no job has them, and the configuration does not, either.

An empty list is a good answer to a good question. To a misspelt one it looks like success: nothing is left to
wait for, nothing was to be killed. Only what the caller may see is searched and suggested.
"""

from collections.abc import Callable, Collection, Iterator
from typing import Final

from sqlalchemy import Connection

from cs_config.tree.configuration import Configuration
from pilotage.service.auth import visibility
from pilotage.service.auth.callers import Caller
from pilotage.service.models.jobs import JobAnswer, JobFilter, UnknownValue
from pilotage.service.services import Services
from requirements.errors import MOST_HINTS, did_you_mean
from requirements.job_fields import FILTERS
from requirements.values import fold
from taskqueue.db import database
from taskqueue.errors import PoolNotFound
from taskqueue.jobs import search
from taskqueue.jobs.search import JobSelector

#: The jobs that pass a filter and whose columns the caller may see.
Select = Callable[[JobFilter, Collection[str]], JobSelector]

#: Filters whose values are names. Statuses are checked where they are read; texts of statuses come and go.
_NAMES: Final = [name for name, each in FILTERS.items() if each.noun]
#: Those of which one may be unknown though jobs with another one are found.
_SEVERAL: Final = [name for name in _NAMES if FILTERS[name].has_several]
#: Latest jobs whose names are suggested.
_SEARCHED: Final = 5000


def find_unknown(
    parts: Services, caller: Caller, wanted: JobFilter, select: Select, *, has_found: bool
) -> list[UnknownValue]:
    """The unknown values of a filter; `has_found`: some jobs pass it, or were not searched yet."""
    config = parts.live.current
    stated = [
        (field, value)
        for field in (_SEVERAL if has_found else _NAMES)
        for value in _list_values(wanted, field)
        if (fold(value) if field == "vo" else value) not in _list_configured(config, caller, field)
    ][:MOST_HINTS]
    if not stated:
        return []
    with database.reading(parts.engine) as conn:
        return [
            _describe(field, value, _list_similar(conn, config, caller, select, field))
            for field, value in stated
            if not _is_known(conn, caller, select, field, value)
        ]


def _list_values(wanted: JobFilter, field: str) -> list[str]:
    value: str | list[str] = wanted.given.get(field, [])
    return [value] if isinstance(value, str) else list(value)


def _list_configured(config: Configuration, caller: Caller, field: str) -> Collection[str]:
    """The values that the configuration has, and the caller's own."""
    if field == "vo":
        return config.vos if caller.visible_vos is None else caller.visible_vos
    if field == "site":
        return config.sites
    sees_others = any(each.owner is None for each in visibility.may_see_names(caller))
    visible = caller.visible_vos  # None: all
    if field == "owner":
        others = (name for name in config.registry.users if sees_others and _is_of(config, name, visible))
        return {caller.user, *others}
    if field == "owner_group" and sees_others:
        groups = config.registry.groups.items()
        return [name for name, group in groups if visible is None or fold(group.vo or "") in visible]
    return ()


def _is_of(config: Configuration, user: str, vos: Collection[str] | None) -> bool:
    """Whether a user is in a group of one of these VOs."""
    return vos is None or not config.registry.vos_by_user.get(user, frozenset()).isdisjoint(vos)


def _is_known(conn: Connection, caller: Caller, select: Select, field: str, value: str) -> bool:
    if field == "pool":
        try:
            visibility.get_visible_pool(conn, caller, value)
        except PoolNotFound:
            return False
        return True
    which = select(JobFilter.model_validate({field: value}), (field,))
    page = search.read_page(conn, which, limit=1)
    return bool(page.jobs) or page.next is not None  # more jobs than one request searches


def _list_similar(
    conn: Connection, config: Configuration, caller: Caller, select: Select, field: str
) -> Iterator[str]:
    yield from _list_configured(config, caller, field)
    if field != "pool":  # a hash, which nobody types
        page = search.read_page(conn, select(JobFilter(), (field,)), limit=_SEARCHED)
        yield from {str(JobAnswer.model_validate(job).model_dump()[field]) for job in page.jobs}


def _describe(field: str, value: str, similar: Iterator[str]) -> UnknownValue:
    meant = did_you_mean(value, similar)
    hint = f", did you mean {meant}?" if meant else ""
    message = f"no job has the {FILTERS[field].noun} {value}{hint}"
    return UnknownValue(field=field, value=value, did_you_mean=meant, message=message)
