"""Values of the configuration with who wrote them, and what they keep away."""

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
from taskqueue.task_queues import waiting_classes

#: Values of one answer.
_MOST = 2000
#: Names that lead to a queue.
_TO_QUEUE = 7
#: Which of them is the site.
_SITE = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class Blamed:
    """A value with its story."""

    line: ShownLine
    since: Version | None  #: None: it is written nowhere
    kept: ParameterImpact | None  #: None: it is no parameter of a queue


def blame_values(
    parts: Services, caller: Caller, config: Configuration, *, path: str, vo: str | None
) -> list[Blamed]:
    """The values at and below a path that the caller may see.

    Args:
        parts: Of the service.
        caller: Who asks.
        config: The version in force.
        path: From the top, or the address of a queue.
        vo: With it, what holds for this VO.

    Raises:
        NotAllowed: The VO is not the caller's.
        PathNotFound: There is nothing, or nothing that he may see.
        InvalidRequest: There is too much.
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
    """The effective parameters of queues for a VO (empty: for nobody in particular), with who wrote them.

    What each keeps away is told by `read`, of one queue.

    Raises:
        NotAllowed: The VO is not the caller's, and a queue is not at a site that he looks after.
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
    """Let VOs ask about themselves, and who looks after a site about every VO there."""
    site = names[_SITE] if tuple(names[:_SITE]) == ("Resources", "Sites") and len(names) > _SITE else ""
    own = visibility.vos_at(caller, site)
    if vo is not None and own is not None and fold(vo) not in own:
        raise NotAllowed(f"{vo!r:.80} is not a VO of the token")


def _visible(caller: Caller, config: Configuration, path: str, vo: str | None) -> Sequence[ShownLine]:
    allowed = in_force.rights_of(caller)
    try:
        found = show.list_lines(config, path, vo)
    except PathNotFound as error:
        # What was probably meant may be another VO's.
        raise error if allowed.everything else PathNotFound(path) from None
    lines = [
        line
        for line in found
        if all(allowed.sees_path(config, tuple(place.split("/"))) for place in line.places)
    ]
    if found and not lines:
        raise PathNotFound(path)
    if len(lines) > _MOST:
        message = f"{len(lines)} values stand there, {_MOST} are told at once: say more of the path"
        raise InvalidRequest([Problem(path=path, message=message)])
    return lines


def _impacts(
    parts: Services, conn: Connection, path: str, vo: str | None
) -> Mapping[str, ParameterImpact] | None:
    """What each parameter keeps away; None: the path is no queue, or the VO is not said."""
    config = parts.live.current
    names = show.split_path(config, path)
    if len(names) != _TO_QUEUE or vo is None:
        return None
    address = QueueAddress(site=names[2], ce=names[4], queue=names[6])
    waiting = explanations.classes(parts, conn, [fold(vo)])
    asked = admission_cache.read_admission(config, address, fold(vo)) is not None
    jobs = waiting_classes.list_first_jobs(conn, waiting) if asked else ()
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
    """The same on the wire."""
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
