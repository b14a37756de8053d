"""Values of the configuration with their authors and the jobs that they exclude."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from sqlalchemy import Connection

from cs_config.errors import PathNotFound
from cs_config.tree import admission_cache
from cs_config.tree.address import QueueAddress
from cs_config.tree.configuration import Configuration
from cs_config.versions import show, store
from cs_config.versions.show import ShownLine
from cs_config.versions.store import Version
from matcher.explain import parameter_impact
from matcher.explain.parameter_impact import ParameterImpact
from matcher.limits import job_groups
from pilotage.service.auth import visibility
from pilotage.service.auth.callers import Caller
from pilotage.service.configuring import in_force
from pilotage.service.models.config import BlamedValue, KeptAway, Since
from pilotage.service.queries import explanations
from pilotage.service.services import Services
from requirements.errors import InvalidRequest, NotAllowed, Problem
from requirements.values import fold
from taskqueue.db import database
from taskqueue.task_queues import listing

#: Most values in one answer.
_MOST = 2000
#: Length of the path of a queue.
_TO_QUEUE = 7
#: Index of the site in the path.
_SITE = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class Blamed:
    """A value, its last change and its effect."""

    line: ShownLine
    since: Version | None  #: None: a default that is not written in the configuration
    kept: ParameterImpact | None  #: None: not a parameter of a queue


def blame_values(
    parts: Services, caller: Caller, config: Configuration, *, path: str, vo: str | None
) -> list[Blamed]:
    """The values at and below a path that the caller may see.

    Args:
        parts: Dependencies.
        caller: Its rights decide what is visible.
        config: The version in force.
        path: Full path, or the address of a queue.
        vo: Show the values that hold for this VO.

    Raises:
        NotAllowed: The VO is not the caller's.
        PathNotFound: There is nothing that the caller may see.
        InvalidRequest: There are too many values.
    """
    _require_vo(caller, vo, show.split_path(config, path))
    lines = _visible(caller, config, path, vo)
    places = {place for line in lines for place in line.places}
    with database.reading(parts.engine) as conn:
        since = store.find_blame(conn, places, newest=config.version)
        kept = _impacts(parts, conn, path, vo)
    return [_blamed(line, since, kept) for line in lines]


def blame_at_queues(
    parts: Services, caller: Caller, config: Configuration, queues: Collection[QueueAddress], *, vo: str
) -> Mapping[QueueAddress, list[Blamed]]:
    """The effective parameters of queues for a VO (empty: the plain values), with their authors.

    Excluded jobs are not counted here, see `blame_values`.

    Raises:
        NotAllowed: The VO is not the caller's, and a queue is not at a site that the caller administers.
    """
    for queue in queues if vo else ():
        _require_vo(caller, vo, show.split_path(config, str(queue)))
    lines = {queue: _effective(caller, config, queue, vo) for queue in queues}
    places = {place for each in lines.values() for line in each for place in line.places}
    with database.reading(parts.engine) as conn:
        since = store.find_blame(conn, places, newest=config.version)
    return {queue: [_blamed(line, since, None) for line in each] for queue, each in lines.items()}


def _effective(caller: Caller, config: Configuration, queue: QueueAddress, vo: str) -> list[ShownLine]:
    return [line for line in _visible(caller, config, str(queue), vo) if line.places]


def _require_vo(caller: Caller, vo: str | None, names: Sequence[str]) -> None:
    """Allow only the caller's VOs; at a site that it administers, every VO."""
    site = names[_SITE] if tuple(names[:_SITE]) == ("Resources", "Sites") and len(names) > _SITE else ""
    own = visibility.vos_at(caller, site)
    if vo is not None and own is not None and fold(vo) not in own:
        raise NotAllowed(f"{vo!r:.80} is not a VO of the token")


def _visible(caller: Caller, config: Configuration, path: str, vo: str | None) -> Sequence[ShownLine]:
    allowed = in_force.rights_of(caller)
    try:
        found = show.list_lines(config, path, vo)
    except PathNotFound as error:
        # The suggestion could reveal a name of another VO.
        raise error if allowed.everything else PathNotFound(path) from None
    lines = [
        line
        for line in found
        if all(allowed.sees_path(config, tuple(place.split("/"))) for place in line.places)
    ]
    if found and not lines:
        raise PathNotFound(path)
    if len(lines) > _MOST:
        message = f"{len(lines)} values are there, at most {_MOST} can be shown: give a longer path"
        raise InvalidRequest([Problem(path=path, message=message)])
    return lines


def _impacts(
    parts: Services, conn: Connection, path: str, vo: str | None
) -> Mapping[str, ParameterImpact] | None:
    """Jobs excluded by each parameter; None: the path is not a queue, or there is no VO."""
    config = parts.live.current
    names = show.split_path(config, path)
    if len(names) != _TO_QUEUE or vo is None:
        return None
    address = QueueAddress(site=names[2], ce=names[4], queue=names[6])
    waiting = explanations.classes(parts, conn, [fold(vo)])
    needs_jobs = admission_cache.read_admission(config, address, fold(vo)) is not None
    jobs = listing.list_first_jobs(conn, waiting) if needs_jobs else ()
    return parameter_impact.parameter_impacts(
        config, address, waiting, {job.job_id: job_groups.job_ad(job) for job in jobs}
    )


def _blamed(
    line: ShownLine, since: Mapping[str, Version], kept: Mapping[str, ParameterImpact] | None
) -> Blamed:
    versions = [since[place] for place in line.places if place in since]
    return Blamed(
        line=line,
        since=max(versions, key=lambda each: each.version, default=None),
        kept=None if kept is None else kept.get(fold(line.path), ParameterImpact()),
    )


def answer(blamed: Blamed) -> BlamedValue:
    """Convert to the HTTP model."""
    line, kept = blamed.line, blamed.kept
    return BlamedValue(
        path=line.path,
        value=line.as_json()["value"],
        origin=line.origin,
        places=list(line.places),
        since=None if blamed.since is None else _since(blamed.since),
        excludes=None if kept is None else KeptAway(jobs=kept.jobs, only_this=kept.alone),
    )


def _since(version: Version) -> Since:
    return Since(
        version=version.version,
        author=version.author,
        stored_at=version.created_at,
        source=version.source,
    )
