"""Visibility policy shared by API, CLI and pages: jobs, pools, task queues, sites, pilots and leases.

Three levels of jobs, each including the one before:

- *Controlled*: users have their own jobs, VO admins those of the VO, operators all.
- *Named*: shown with owners, names and descriptions: also jobs of the VOs of a director, gateway or site
  admin at its sites.
- *Counted*: shown as numbers by VO, state, place and progress: also, for a site admin, all jobs at the site.
  The admin needs the numbers at the site, not the names of a VO's members.

Waiting jobs, pools and explanations are visible to every member of a VO (`Caller.may_read`).
"""

from collections.abc import Collection, Iterator, Sequence
from dataclasses import replace
from datetime import datetime
from typing import Final, NoReturn

from sqlalchemy import Connection

from cs_config.errors import SiteNotFound
from cs_config.tree.address import QueueAddress
from cs_config.tree.configuration import Configuration
from matcher.explain import queue_set
from pilotage.service.auth.callers import Caller, Role
from pilotage.service.models.jobs import JobFilter, parse_moment
from requirements import job_fields
from requirements.errors import InvalidRequest, NotAllowed, Problem, did_you_mean
from requirements.job_fields import FILTERED, OWNER, SITE, VO, AnyField
from requirements.states import PilotStatus
from requirements.values import fold
from taskqueue import ownership
from taskqueue.errors import JobNotFound, LeaseNotFound, PilotNotFound, PoolNotFound
from taskqueue.jobs.jobs import Job
from taskqueue.jobs.search import JobSelector, Period
from taskqueue.leases import attempts
from taskqueue.leases.attempts import Attempt
from taskqueue.ownership import OwnershipFilter, drop_contained
from taskqueue.pilots.pilots import Pilot
from taskqueue.pilots.search import PilotFilter
from taskqueue.pools import listing, pools
from taskqueue.pools.pools import Pool
from taskqueue.sites import scopes
from taskqueue.sites.processes import SiteProcess
from taskqueue.task_queues import listing as task_queues_listing

_CONTROLLED, _NAMED, _COUNTED = range(3)


def controlled(caller: Caller) -> tuple[OwnershipFilter, ...]:
    """The jobs that the caller may list and control."""
    return _list_visible(caller, _CONTROLLED)


def may_see_names(caller: Caller) -> tuple[OwnershipFilter, ...]:
    """The jobs whose owners and names the caller may see."""
    return _list_visible(caller, _NAMED)


def may_count(caller: Caller) -> tuple[OwnershipFilter, ...]:
    """The jobs, and the pilots, that the caller may count by place and progress."""
    return _list_visible(caller, _COUNTED)


def controls(caller: Caller, *, vo: str, owner: str) -> bool:
    """Whether the caller may see all of a job and control it."""
    return any(each.includes(vo=vo, owner=owner, site="") for each in controlled(caller))


def may_see_names_of(caller: Caller, *, vo: str, owner: str, site: str) -> bool:
    """Whether the caller may see the owner and name of a job at a site."""
    return any(each.includes(vo=vo, owner=owner, site=site) for each in may_see_names(caller))


def vos_at(caller: Caller, site: str) -> frozenset[str] | None:
    """The VOs whose jobs the caller may count at a site; None: all."""
    return None if caller.looks_after(site) else caller.visible_vos


def _list_visible(caller: Caller, level: int) -> tuple[OwnershipFilter, ...]:
    return drop_contained([each for role in caller.each for each in _list_of_role(role, level)])


def _list_of_role(caller: Caller, level: int) -> Iterator[OwnershipFilter]:
    if caller.role is Role.USER:
        yield OwnershipFilter(vos=caller.vos, owner=caller.user)
    elif caller.role in (Role.VO_ADMIN, Role.OPERATOR):
        yield OwnershipFilter(vos=caller.visible_vos)
    elif caller.role in (Role.SITE_ADMIN, Role.GATEWAY, Role.DIRECTOR) and caller.vos and level >= _NAMED:
        yield OwnershipFilter(vos=caller.vos, sites=caller.sites or None)
    if caller.role is Role.SITE_ADMIN and level >= _COUNTED:
        yield OwnershipFilter(sites=caller.sites)


#: Columns that show the work of persons, as filters or groupings: for callers who may see names.
PERSONAL: Final = job_fields.PERSONAL | {"task_queue"}


def visible_jobs(caller: Caller, wanted: JobFilter, *, now: datetime) -> JobSelector:
    """The jobs of `wanted` that the caller may list; others are treated as nonexistent."""
    return _within(controlled(caller), wanted, now)


def countable(caller: Caller, wanted: JobFilter, by: Collection[str], *, now: datetime) -> JobSelector:
    """The jobs of `wanted` that the caller may count by these columns.

    `NotAllowed` if a column is personal and the caller may not see names.
    """
    columns = {*by, *wanted.given}
    # As a group it shows texts that payloads have written.
    refused = sorted(columns.intersection(PERSONAL) | {"application_status"}.intersection(by))
    allowed = may_see_names(caller) if refused else may_count(caller)
    if not allowed:
        raise NotAllowed(f"{caller.role} may see numbers of VOs, not of persons: not by {', '.join(refused)}")
    return _within(allowed, wanted, now)


def require_job(caller: Caller, job: Job) -> Job:
    """Return the job if the caller may control it, else raise `JobNotFound` as for a nonexistent one."""
    if not controls(caller, vo=job.vo, owner=job.owner):
        raise JobNotFound(job.job_id)
    return job


def require_readable(caller: Caller, job: Job) -> Job:
    """Return the job if the caller may read its VO's data, such as why it waits, else raise `JobNotFound`."""
    if not caller.may_read(job.vo):
        raise JobNotFound(job.job_id)
    return job


def _within(allowed: Sequence[OwnershipFilter], wanted: JobFilter, now: datetime) -> JobSelector:
    owner, sites, vos = wanted.get(OWNER), wanted.get(SITE), wanted.get(VO)
    own = [
        each.narrow(
            vos=None if vos is None else frozenset(map(fold, vos)),
            sites=None if sites is None else frozenset(sites),
            owner=owner[0] if owner else None,
        )
        for each in allowed
    ]
    every, any_of = ownership.split_common(own)
    values = {
        FILTERED[name].name: _read_values(FILTERED[name], value)
        for name, value in wanted.given.items()
        if name not in job_fields.TIMES
    }
    found = JobSelector(values=values, periods=dict(_read_periods(wanted, now)), any_of=any_of)
    return (
        found.without(VO, SITE, OWNER)
        .where(VO, every.vos)
        .where(SITE, every.sites)
        .where(OWNER, None if every.owner is None else {every.owner})
    )


def _read_values(field: AnyField, given: object) -> frozenset[object]:
    """The values of a filter; None is that of jobs which have no number."""
    values = given if isinstance(given, list) else [given]
    return frozenset(None if field.type is int and value == "none" else value for value in values)


def _read_periods(wanted: JobFilter, now: datetime) -> Iterator[tuple[str, Period]]:
    """The times that are filtered by, by their names."""
    times = {
        name: parse_moment(name, text, now) for name, text in wanted.given.items() if name in job_fields.TIMES
    }
    for field in {FILTERED[name].name: FILTERED[name] for name in times}.values():
        since, before = (times.get(each.name) for each in field.filters)
        yield field.name, Period(since=since, before=before)


def visible_pools(caller: Caller, *, vo: str | None = None) -> listing.PoolFilter:
    """The pools of a VO (None: of any) that the caller may see."""
    wanted = None if vo is None else frozenset({fold(vo)})
    return listing.PoolFilter(vos=caller.visible_vos, served_at=caller.own_sites, among=wanted)


def get_visible_pool(conn: Connection, caller: Caller, pool_id: str) -> Pool:
    """Return the pool if the caller may see it, else raise `PoolNotFound` as for one that does not exist."""
    pool = pools.get_pool(conn, pool_id)
    if not caller.may_read(pool.vo) and not listing.contains_pool(conn, visible_pools(caller), pool_id):
        raise PoolNotFound(pool_id)
    return pool


def visible_queues(caller: Caller, pool: Pool, eligible: Sequence[QueueAddress]) -> Sequence[QueueAddress]:
    """The eligible queues that the caller may see: of other VOs' pools only those at its sites."""
    if caller.may_read(pool.vo):
        return eligible
    return [queue for queue in eligible if caller.looks_after(queue.site)]


def pool_vos(caller: Caller, every: Collection[str]) -> list[str]:
    """The VOs offered as filters in lists of pools, pilots and the like."""
    is_every = caller.own_sites or caller.visible_vos is None
    return sorted(every if is_every else caller.visible_vos or ())


def task_queues(
    caller: Caller,
    *,
    vo: str | None = None,
    owner: str | None = None,
    owner_group: str | None = None,
    submit_pool: str | None = None,
) -> task_queues_listing.TaskQueueFilter:
    """The task queues that match the arguments and whose jobs' names the caller may see."""
    vos = None if vo is None else frozenset({fold(vo)})
    visible = [each.narrow(vos=vos, owner=owner) for each in may_see_names(caller)]
    return task_queues_listing.TaskQueueFilter(
        visible=visible, owner_group=owner_group, submit_pool=submit_pool
    )


def require_site(caller: Caller, config: Configuration, site: str) -> None:
    """Raise `NotAllowed` for a site that is not the caller's, `SiteNotFound` for one that does not exist."""
    if not caller.is_operator and site not in caller.every_site:
        raise NotAllowed(f"the token is for {', '.join(sorted(caller.every_site))}, not for {site}")
    require_known(config, site)


def require_known(config: Configuration, site: str) -> None:
    """Raise `SiteNotFound`, with the name probably meant, if there is no such site."""
    if site not in config.sites:
        refuse_unknown(config, site)


def refuse_unknown(config: Configuration, scope: str) -> NoReturn:
    """Raise `SiteNotFound` for a site, CE or queue, with the name probably meant."""
    raise SiteNotFound(scope, did_you_mean(scope, list_scopes(config)))


def list_scopes(config: Configuration) -> frozenset[str]:
    """Every site, CE and queue: `Site`, `Site/CE`, `Site/CE/Queue`."""
    below = (scopes.list_enclosing(str(address)) for address in config.addresses)
    return config.sites.union(config.throttles, *below)


def site_vos(caller: Caller, config: Configuration, site: str) -> list[str]:
    """The VOs whose view of a site the caller may select: its own; at a site that it administers, all."""
    own = vos_at(caller, site)
    return sorted(config.vos if own is None else config.vos & own)


def concerned_sites(caller: Caller, config: Configuration) -> frozenset[str]:
    """The caller's own sites, and those where its VOs may run."""
    if caller.is_operator:
        return config.sites
    found = set(caller.every_site & config.sites)
    for vo in caller.visible_vos or ():
        whole = queue_set.all_queues(config, vo)
        found.update(site for site, queues in whole.sites.items() if queues & whole.admitted)
    return frozenset(found)


def visible_pilots(caller: Caller, *, vo: str | None, site: str | None, status: str | None) -> PilotFilter:
    """The filter for pilots, narrowed to those that the caller may count."""
    vos = None if vo is None else frozenset(map(fold, _words(vo)))
    sites = None if site is None else frozenset(_words(site))
    visible = [each.narrow(vos=vos, sites=sites) for each in may_count(caller)]
    return PilotFilter(visible=visible, statuses=None if status is None else _statuses(_words(status)))


def vo_of(caller: Caller, named: str | None) -> str:
    """The VO that pilots are sent for; `named` may be left out if the token has exactly one."""
    vo = caller.vo if named is None else fold(named)
    if vo is None:
        message = "is required, since the token does not have exactly one VO"
        raise InvalidRequest([Problem(path="vo", message=message)])
    if not caller.may_read(vo):
        raise NotAllowed(f"the token is not for the VO {vo}")
    return vo


def require_pilot_site(caller: Caller, vo: str, queue: QueueAddress) -> None:
    """Raise `NotAllowed` unless one of the caller's roles may send pilots of the VO to the site."""
    if not may_serve(caller, vo, queue.site):
        raise NotAllowed(f"the token is not for pilots of {vo} at {queue.site}")


def may_serve(caller: Caller, vo: str, site: str) -> bool:
    """Whether one of the caller's roles may send pilots or jobs of the VO to the site."""
    return any(not one.sites or site in one.sites for one in caller.each if one.may_read(vo))


def require_pilot(caller: Caller, pilot: Pilot) -> None:
    """Raise `PilotNotFound` for pilots of others, as if they did not exist."""
    if not has_pilot(caller, pilot):
        raise PilotNotFound(pilot.stamp)


def has_pilot(caller: Caller, pilot: Pilot) -> bool:
    """Whether a pilot is the caller's: itself, or of its VOs and sites; users have none."""
    if caller.role is Role.PILOT:
        return caller.stamp == pilot.stamp
    return any(_has(each, pilot) for each in may_count(caller))


def visible_processes(caller: Caller, found: Sequence[SiteProcess]) -> list[SiteProcess]:
    """The directors and gateways of the caller's VOs, and those at its sites, with the queues there."""
    visible = []
    for each in found:
        places = [one.sites for one in may_count(caller) if _includes(one, each)]
        if None in places:
            visible.append(each)
        elif places:
            visible.append(_keep_queues(each, frozenset[str]().union(*filter(None, places))))
    return visible


def _includes(filter_: OwnershipFilter, process: SiteProcess) -> bool:
    is_there = filter_.sites is None or not filter_.sites.isdisjoint(process.sites)
    return is_there and (filter_.vos is None or process.vo in filter_.vos)


def _keep_queues(process: SiteProcess, sites: frozenset[str]) -> SiteProcess:
    """The process with what it reports of queues at these sites."""
    queues = process.queues
    return replace(
        process,
        queues=None if queues is None else [each for each in queues if _site_of(each.queue) in sites],
        too_small=[each for each in process.too_small if _site_of(each.queue) in sites],
    )


def _site_of(queue: str) -> str:
    return queue.partition("/")[0]


def _has(each: OwnershipFilter, pilot: Pilot) -> bool:
    is_there = each.sites is None or pilot.may_be_at(each.sites)
    return each.owner is None and is_there and (each.vos is None or pilot.vo in each.vos)


def _statuses(words: Sequence[str]) -> frozenset[PilotStatus]:
    known = list(PilotStatus)
    wrong = [
        Problem(
            path="status",
            message=f"{word!r:.80} is not a status of a pilot",
            suggestion=did_you_mean(word, known),
        )
        for word in words
        if word not in known
    ]
    if wrong:
        raise InvalidRequest(wrong)
    return frozenset(map(PilotStatus, words))


def _words(text: str) -> list[str]:
    return [word.strip() for word in text.split(",") if word.strip()]


def require_lease(conn: Connection, caller: Caller, lease: str) -> Attempt:
    """The attempt with this lease; `LeaseNotFound` if there is none or it is another caller's."""
    attempt = attempts.get_attempt(conn, lease)
    if not may_report(caller, attempt):
        raise LeaseNotFound(lease)
    return attempt


def may_report(caller: Caller, attempt: Attempt) -> bool:
    """Whether the attempt is the caller's. A gateway may hold it with another token of its site and VO."""
    is_of_gateway = (
        caller.role is Role.GATEWAY
        and attempt.holder.startswith(f"{Role.GATEWAY}:")
        and attempt.site in caller.sites
        and attempt.vo in caller.vos
    )
    return caller.is_operator or attempt.holder == caller.subject or is_of_gateway
