"""Of whose jobs a caller is told, and how much: the one rule below interface, command line and pages.

- *Controlled*: users have their own jobs, VO admins those of the VO, operators all.
- *Named*: told with owners, names and descriptions. The same, and jobs of the VOs that somebody stands for at
  the sites where he does.
- *Counted*: told in numbers, by VO, state, place and progress. The same, and for who looks after a site all
  that is there: what happens at a site is its admin's business, who in a VO does it is not.

What waits, pools and explanations are read by every member of a VO (`Caller.may_read`).

Which jobs a caller may see and control, as a filter.

Which pools and task queues a caller may see: of its VOs, and what its sites' queues are asked for.

Which sites a caller may speak for, and which names of places there are.

Which pilots a caller may see, send and speak of.

Whose lease it is: a pilot reports on its own attempts only.
"""

from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from typing import Final, NoReturn, TypeVar

from sqlalchemy import Connection

from cs_config.errors import SiteNotFound
from cs_config.tree.address import QueueAddress
from cs_config.tree.configuration import Configuration
from matcher.explain import queue_set
from pilotage.service.auth.callers import Caller, Role
from pilotage.service.models.jobs import JobFilter
from requirements.errors import InvalidRequest, NotAllowed, Problem, did_you_mean
from requirements.values import fold
from taskqueue import ownership
from taskqueue.errors import JobNotFound, LeaseNotFound, PilotNotFound, PoolNotFound
from taskqueue.jobs.jobs import Job
from taskqueue.jobs.search import JobSelector
from taskqueue.leases import attempts
from taskqueue.leases.attempts import Attempt
from taskqueue.ownership import OwnershipFilter, drop_contained
from taskqueue.pilots.pilots import Pilot
from taskqueue.pilots.search import PilotFilter
from taskqueue.pools import listing, pools
from taskqueue.pools.pools import Pool
from taskqueue.sites import scopes
from taskqueue.states import PilotStatus
from taskqueue.task_queues import listing as task_queues_listing


def controlled(caller: Caller) -> tuple[OwnershipFilter, ...]:
    """The jobs that the caller lists one by one, and controls."""
    return _all_roles(caller, _controlled)


def may_see_names(caller: Caller) -> tuple[OwnershipFilter, ...]:
    """The jobs of which it is told whose they are, and what they are called."""
    return _all_roles(caller, _named_vos)


def may_count(caller: Caller) -> tuple[OwnershipFilter, ...]:
    """The jobs, and the pilots, of which it is told how many there are, where, and how far."""
    return _all_roles(caller, _counted_vos)


def controls(caller: Caller, *, vo: str, owner: str) -> bool:
    """Whether a job is the caller's to look at with all that it says, and to end."""
    return any(each.includes(vo=vo, owner=owner, site="") for each in controlled(caller))


def names(caller: Caller, *, vo: str, owner: str, site: str) -> bool:
    """Whether the caller is told whose a job at a site is, and what it is called."""
    return any(each.includes(vo=vo, owner=owner, site=site) for each in may_see_names(caller))


def vos_at(caller: Caller, site: str) -> frozenset[str] | None:
    """The VOs whose jobs count for the caller at a site; None: all."""
    return None if caller.looks_after(site) else caller.visible_vos


def _controlled(caller: Caller) -> Iterator[OwnershipFilter]:
    if caller.role is Role.USER:
        yield OwnershipFilter(vos=caller.vos, owner=caller.user)
    elif caller.role in (Role.VO_ADMIN, Role.OPERATOR):
        yield OwnershipFilter(vos=caller.visible_vos)


def _named_vos(caller: Caller) -> Iterator[OwnershipFilter]:
    yield from _controlled(caller)
    if caller.role in (Role.SITE_ADMIN, Role.GATEWAY, Role.DIRECTOR) and caller.vos:
        yield OwnershipFilter(vos=caller.vos, sites=caller.sites or None)


def _counted_vos(caller: Caller) -> Iterator[OwnershipFilter]:
    yield from _named_vos(caller)
    if caller.role is Role.SITE_ADMIN:
        yield OwnershipFilter(sites=caller.sites)


def _all_roles(
    caller: Caller, told: Callable[[Caller], Iterator[OwnershipFilter]]
) -> tuple[OwnershipFilter, ...]:
    return drop_contained([whose for role in caller.each for whose in told(role)])


_T = TypeVar("_T")

#: What of a job is its owner's and its VO's business, as a filter asks it or a summary counts by it.
PERSONAL: Final = ("owner", "owner_group", "job_name", "job_group", "ids", "task_queue")


def visible_jobs(caller: Caller, wanted: JobFilter) -> JobSelector:
    """The jobs of `wanted` that the caller may list; what is not its own is as if it did not exist."""
    return _within(controlled(caller), wanted)


def countable(caller: Caller, wanted: JobFilter, by: Collection[str]) -> JobSelector:
    """The jobs of `wanted` that the caller may be told the numbers of, by these columns.

    Raises:
        NotAllowed: It asks who is at work, and is not told that.
    """
    asked = {*by, *(name for name in JobFilter.model_fields if getattr(wanted, name) is not None)}
    refused = sorted(asked.intersection(PERSONAL))
    allowed = may_see_names(caller) if refused else may_count(caller)
    if not allowed:
        raise NotAllowed(f"{caller.role} is told of VOs, not who works in them: not by {', '.join(refused)}")
    return _within(allowed, wanted)


def require_job(caller: Caller, job: Job) -> Job:
    """The job, if the caller may see and control it.

    Raises:
        JobNotFound: It may not; the same as for a job that does not exist.
    """
    if not controls(caller, vo=job.vo, owner=job.owner):
        raise JobNotFound(job.job_id)
    return job


def require_readable(caller: Caller, job: Job) -> Job:
    """The job, if the caller may read what concerns its VO, such as why it waits.

    Raises:
        JobNotFound: It may not.
    """
    if not caller.may_read(job.vo):
        raise JobNotFound(job.job_id)
    return job


def _within(allowed: Sequence[OwnershipFilter], wanted: JobFilter) -> JobSelector:
    vos = None if wanted.vo is None else frozenset(map(fold, wanted.vo))
    own = [each.narrow(vos=vos, sites=_set(wanted.site), owner=wanted.owner) for each in allowed]
    every, any_of = ownership.split_common(own)
    return JobSelector(
        job_ids=_set(wanted.ids),
        vos=every.vos,
        owner=every.owner,
        owner_group=wanted.owner_group,
        statuses=_set(wanted.status),
        minor_status=wanted.minor_status,
        sites=every.sites,
        submit_pool=wanted.pool,
        job_name=wanted.job_name,
        job_type=wanted.job_type,
        job_group=wanted.job_group,
        any_of=any_of,
    )


def _set(values: Iterable[_T] | None) -> frozenset[_T] | None:
    return None if values is None else frozenset(values)


def visible_pools(caller: Caller, *, vo: str | None = None) -> listing.PoolFilter:
    """The pools of a VO (None: of any) that the caller may see."""
    asked = None if vo is None else frozenset({fold(vo)})
    return listing.PoolFilter(vos=caller.visible_vos, served_at=caller.own_sites, among=asked)


def get(conn: Connection, caller: Caller, pool_id: str) -> Pool:
    """The pool, if the caller may see it.

    Raises:
        PoolNotFound: It may not; the same as for a pool that does not exist.
    """
    pool = pools.get_pool(conn, pool_id)
    if not caller.may_read(pool.vo) and not listing.contains_pool(conn, visible_pools(caller), pool_id):
        raise PoolNotFound(pool_id)
    return pool


def queues(caller: Caller, pool: Pool, eligible: Sequence[QueueAddress]) -> Sequence[QueueAddress]:
    """Those of its queues that the caller is told: of other VOs' pools only those at his sites."""
    if caller.may_read(pool.vo):
        return eligible
    return [queue for queue in eligible if caller.looks_after(queue.site)]


def pool_vos(caller: Caller, every: Collection[str]) -> list[str]:
    """The VOs that lists of pools, pilots and the like may be narrowed to, of all that there are."""
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
    """The task queues of what was asked that the caller may see: those of jobs that are named to it."""
    vos = None if vo is None else frozenset({fold(vo)})
    every, any_of = ownership.split_common(
        [each.narrow(vos=vos, owner=owner) for each in may_see_names(caller)]
    )
    return task_queues_listing.TaskQueueFilter(
        vos=every.vos,
        owner=every.owner,
        owner_group=owner_group,
        submit_pool=submit_pool,
        any_of=any_of,
    )


def require_site(caller: Caller, config: Configuration, site: str) -> None:
    """Refuse sites of others, then those that do not exist.

    Raises:
        NotAllowed, SiteNotFound: It is such a one.
    """
    if not caller.is_operator and site not in caller.every_site:
        raise NotAllowed(f"the token is for {', '.join(sorted(caller.every_site))}, not for {site}")
    require_known(config, site)


def require_known(config: Configuration, site: str) -> None:
    """Refuse sites that do not exist.

    Raises:
        SiteNotFound: With what was probably meant.
    """
    if site not in config.sites:
        unknown(config, site)


def unknown(config: Configuration, scope: str) -> NoReturn:
    """Say that there is no such site, CE or queue.

    Raises:
        SiteNotFound: With what was probably meant.
    """
    raise SiteNotFound(scope, did_you_mean(scope, places(config)))


def places(config: Configuration) -> frozenset[str]:
    """Every site, CE and queue: `Site`, `Site/CE`, `Site/CE/Queue`."""
    below = (scopes.list_enclosing(str(address)) for address in config.addresses)
    return config.sites.union(config.throttles, *below)


def site_vos(caller: Caller, config: Configuration, site: str) -> list[str]:
    """The VOs as which the caller may look at a site: his own, and all of them at a site of his."""
    own = vos_at(caller, site)
    return sorted(config.vos if own is None else config.vos & own)


def concerned_sites(caller: Caller, config: Configuration) -> frozenset[str]:
    """The sites that the caller has to do with: his own, and where his VOs may run."""
    if caller.is_operator:
        return config.sites
    found = set(caller.every_site & config.sites)
    for vo in caller.visible_vos or ():
        whole = queue_set.all_queues(config, vo)
        found.update(site for site, queues in whole.sites.items() if queues & whole.admitted)
    return frozenset(found)


def visible_pilots(caller: Caller, *, vo: str | None, site: str | None, status: str | None) -> PilotFilter:
    """The filter for what was asked, narrowed to what is the caller's.

    Raises:
        InvalidRequest: A word is no status of a pilot.
    """
    vos = None if vo is None else frozenset(map(fold, _words(vo)))
    sites = None if site is None else frozenset(_words(site))
    every, any_of = ownership.split_common([each.narrow(vos=vos, sites=sites) for each in may_count(caller)])
    return PilotFilter(vos=every.vos, sites=every.sites, statuses=_statuses(status), any_of=any_of)


def vo_of(caller: Caller, named: str | None) -> str:
    """The VO that pilots are sent for.

    Raises:
        InvalidRequest: It is not named, and the token has several.
        NotAllowed: It is not the caller's.
    """
    vo = caller.vo if named is None else fold(named)
    if vo is None:
        raise InvalidRequest([Problem(path="vo", message="has to be named, since the token has not one VO")])
    if not caller.may_read(vo):
        raise NotAllowed(f"the token is not for pilots of {vo}")
    return vo


def require_pilot_site(caller: Caller, vo: str, queue: QueueAddress) -> None:
    """Refuse to send pilots of a VO to a site where none of the caller's roles may.

    Raises:
        NotAllowed: It may not.
    """
    may = (one for one in caller.each if one.may_read(vo))
    if not any(not one.sites or queue.site in one.sites for one in may):
        raise NotAllowed(f"the token is not for pilots of {vo} at {queue.site}")


def require_pilot(caller: Caller, pilot: Pilot) -> None:
    """Refuse pilots of others as if there were none.

    Raises:
        PilotNotFound: It is not the caller's.
    """
    if caller.role is Role.PILOT:
        is_own = caller.stamp == pilot.stamp
    else:
        is_own = any(_has(each, pilot) for each in may_count(caller))
    if not is_own:
        raise PilotNotFound(pilot.stamp)


def _has(each: OwnershipFilter, pilot: Pilot) -> bool:
    is_there = each.sites is None or pilot.may_be_at(each.sites)
    return is_there and (each.vos is None or pilot.vo in each.vos)


def _statuses(named: str | None) -> frozenset[PilotStatus] | None:
    if named is None:
        return None
    words = _words(named)
    wrong = [word for word in words if word not in list(PilotStatus)]
    if wrong:
        raise InvalidRequest(
            [
                Problem(
                    path="status",
                    message=f"{word!r:.80} is no status of a pilot",
                    suggestion=did_you_mean(word, list(PilotStatus)),
                )
                for word in wrong
            ]
        )
    return frozenset(PilotStatus(word) for word in words)


def _words(text: str) -> list[str]:
    return [word.strip() for word in text.split(",") if word.strip()]


def require_lease(conn: Connection, caller: Caller, lease: str) -> Attempt:
    """The attempt with this lease, if it is the caller's.

    Raises:
        LeaseNotFound: It is not, or there never was one.
    """
    attempt = attempts.get_attempt(conn, lease)
    if not caller.is_operator and attempt.holder != caller.subject and not _is_of_gateway(caller, attempt):
        raise LeaseNotFound(lease)
    return attempt


def _is_of_gateway(caller: Caller, attempt: Attempt) -> bool:
    """Whether it came to the caller's site and VO by a gateway (this one, with another token)."""
    return (
        caller.role is Role.GATEWAY
        and attempt.holder.startswith(f"{Role.GATEWAY}:")
        and attempt.site in caller.sites
        and attempt.vo in caller.vos
    )
