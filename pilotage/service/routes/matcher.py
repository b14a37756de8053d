"""The matcher: pools of queues, jobs for pilots, task queues for directors."""

import asyncio
import json
import time
from collections.abc import Hashable, Iterable, Mapping
from contextlib import nullcontext, suppress
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Annotated, Any, Final

import anyio.to_thread
from fastapi import APIRouter, Header, Query
from fastapi.responses import StreamingResponse
from pydantic_core import to_json

from cs_config.cache import Cache
from cs_config.options.operations import options_for
from cs_config.tree.address import QueueAddress
from cs_config.tree.configuration import Configuration
from matcher import conditions, demand
from matcher.answer_recorder import Place
from matcher.claim import matcher as matching
from matcher.claim.claim_thread import ClaimWorker
from matcher.claim.snapshot import NoMatch
from matcher.class_flags import Flags
from matcher.demand import MatchingTaskQueue
from matcher.index import place_pools
from matcher.request import match_request, node_document, queue_offer
from matcher.request.match_request import Busy, MatchRequest, MatchResult, NotInTime
from pilotage.service.auth import pilot_binding
from pilotage.service.auth.access import allow
from pilotage.service.auth.callers import Caller, Role
from pilotage.service.clients import WaitingClient
from pilotage.service.http_errors import ClientGone, ClockWrong
from pilotage.service.models.matching import (
    DemandAnswer,
    DemandedTaskQueue,
    DemandQuestion,
    JobRequest,
    Matches,
    QueuePoolsAnswer,
    QueuePoolsPage,
    QueuesQuestion,
    ResourceDescription,
    TaskQueueAnswer,
    TaskQueues,
    UnknownQueue,
)
from pilotage.service.queries.queue_pools import QueuePools
from pilotage.service.routing import SMALL, ApiRoute, CallerOf, ClientOf, PartsOf
from pilotage.service.services import Services
from requirements.errors import InvalidRequest, NotAllowed, Problem, format_count
from requirements.resource import StatedResource
from taskqueue.db import database
from taskqueue.jobs import descriptions
from taskqueue.leases.opening import ClaimedJob
from taskqueue.task_queues.task_queues import TaskQueue

router = APIRouter(prefix="/matcher", tags=["matcher"], route_class=ApiRoute)

_GONE = "the client did not wait for the answer"
#: Queues whose pools a person requests at a time: each may have tens of thousands.
_QUEUES_OF_PERSON = 20
#: Longest resource description, in characters, that is cached.
_CACHED_LENGTH = 8192

RequestTimeout = Annotated[
    float | None,
    Header(
        gt=0, le=86_400, description="Seconds that the client waits; jobs that arrive later are not claimed."
    ),
]


@router.post("/getSubmitPoolsForQueue", response_model=QueuePoolsAnswer, response_model_exclude_unset=True)
@allow(Role.USER, Role.VO_ADMIN, Role.SITE_ADMIN, Role.DIRECTOR, Role.GATEWAY, Role.PILOT)
def get_submit_pools_for_queue(
    parts: PartsOf, caller: CallerOf, body: QueuesQuestion, query: Annotated[QueuePoolsPage, Query()]
) -> QueuePoolsAnswer | StreamingResponse:
    """List the ids of the pools that each queue is eligible for; with `flags` grouped by pilots' flags.

    Those of the VOs of the token, at the own sites of a site admin those of all VOs. Unknown queues are
    listed apart, on the first page; 404 only if all are unknown. With `limit` the answer is a page with so
    many pools, which may end within a queue; `after` continues with the same body. Without it the answer has
    all pools.
    """
    names = list(dict.fromkeys(_queue_names(body)))
    if caller.role is Role.PILOT and len(names) > 1:
        raise NotAllowed("a pilot may only request its own queue")
    if caller.role in (Role.USER, Role.VO_ADMIN, Role.SITE_ADMIN) and len(names) > _QUEUES_OF_PERSON:
        message = f"has {format_count(len(names), 'queue')}, allowed at a time are {_QUEUES_OF_PERSON}"
        raise InvalidRequest([Problem(path="queues", message=message)])
    known, unknown = place_pools.find_queues(names, parts.live.current)
    for address in frozenset(known.values()):
        if not caller.looks_after(address.site):
            pilot_binding.check_site(caller, address.site)
        if caller.role is Role.PILOT:
            parts.places.bind(caller, address, now=parts.clock())
    return QueuePools(
        parts=parts,
        caller=caller,
        names=names,
        known=known,
        unknown=[UnknownQueue(queue=str(each.name), did_you_mean=each.suggestion) for each in unknown],
        by_flags=body.flags,
    ).answer(query)


@dataclass(slots=True, kw_only=True)
class RequestedJobs:
    """Content of a body of requestJob."""

    stated: bytes  #: the resource as JSON, by which equal requests share caches
    time_left: float | None  #: wall time of a node's document, for which `stated` has 0
    count: int
    said_before: bool | None  #: as `JobRequest.said_before`
    request_id: str | None

    @classmethod
    def from_body(cls, body: JobRequest) -> "RequestedJobs":
        """Create it from a parsed body."""
        record = body.to_record()
        lasting, time_left = node_document.split_time(record) or (record, None)
        return cls(
            stated=to_json(lasting),
            time_left=time_left,
            count=body.count,
            said_before=body.said_before,
            request_id=body.request_id,
        )


@router.post("/requestJob", response_model=Matches, response_model_exclude_none=True)
@allow(Role.GATEWAY, Role.PILOT, most_bytes=SMALL)
async def request_job(
    parts: PartsOf,
    caller: CallerOf,
    client: ClientOf,
    body: JobRequest,
    request_timeout: RequestTimeout = None,
) -> bytes:
    """Request jobs: the answer has jobs with their leases, or the reason for none and when to try again."""
    # For the description and the tests of routes; `HotRoutes.answer` comes before it.
    return await match_jobs(parts, caller, client, RequestedJobs.from_body(body), request_timeout)


async def match_jobs(
    parts: Services,
    caller: Caller,
    client: WaitingClient,
    asked: RequestedJobs,
    request_timeout: float | None = None,
) -> bytes:
    """The body of the answer, a `Matches` without its empty fields."""
    require_ready(parts)
    is_cached = len(asked.stated) <= _CACHED_LENGTH
    # Equal for requests with the same resource and the same rights.
    key = (asked.stated, caller.role, caller.vos, caller.queue) if is_cached else None
    may_have_been_answered = asked.request_id is not None and asked.said_before is not False
    if not may_have_been_answered and (no_match := _find_no_match(parts, caller, key, asked.time_left)):
        reason = no_match.refused or matching.NO_TASK_QUEUE
        _record_answer(parts, caller.vos, no_match.served.place, reason)
        return _refuse(parts, reason, no_match.warnings)
    resource, address = _read_place(asked, parts.live.current, is_cached=is_cached)
    pilot_binding.check_site(caller, resource.site)
    await _require_bound(parts, caller, resource, address)
    seconds = min(request_timeout or parts.limits.request_timeout, parts.limits.longest_request_timeout)
    wanted = MatchRequest(
        presented=resource,
        caller=_caller(parts, caller, resource),
        deadline=time.monotonic() + seconds,
        count=asked.count,
        request_id=asked.request_id,
        cache_key=key,
        time_left=asked.time_left,
    )
    stamp = caller.stamp
    async with nullcontext() if stamp is None else parts.places.turn(stamp, deadline=wanted.deadline):
        answer = await claim_jobs(parts, client, wanted)
    return _encode_matches(parts, caller, wanted, answer)


def _encode_matches(parts: Services, caller: Caller, wanted: MatchRequest, answer: MatchResult) -> bytes:
    parts.wait_causes.count(wanted, answer)
    parts.hardware.count(wanted, parts.live.current.sites)
    _record_answer(parts, wanted.caller.vos, wanted.presented, answer.reason)
    if answer.reason:
        return _refuse(parts, answer.reason, answer.warnings)
    if caller.role is Role.PILOT and any(each.vo not in caller.vos for each in answer.matches):
        # Stored for the stamp and the id of the request, which may be those of a pilot of another VO.
        raise NotAllowed("a pilot of another VO has sent a request with this request_id")
    config = parts.live.current
    count_matches(parts, [each.vo for each in answer.matches], wanted.presented)
    jobs = b",".join([_encode_job(each, config) for each in answer.matches])
    return b'{"matches":[%b],"warnings":%b}' % (jobs, to_json(answer.warnings))


def _record_answer(parts: Services, vos: frozenset[str], place: Place, answer: str | None) -> None:
    parts.answers_given.count(place, vos, answer, parts.live.current)


def require_ready(parts: Services) -> None:
    """Raise `ClockWrong`, `CommitsLost` or `Busy` if this process may hand out no jobs now."""
    database.require_history(parts.engine)
    if problem := parts.clock_problem():
        raise ClockWrong(problem)
    if parts.live.problem is not None:
        # Places may be closed, and VOs excluded, by what this process cannot read.
        raise Busy("this process cannot read the newest version of the configuration; another one serves")


async def claim_jobs(parts: Services, client: WaitingClient, wanted: MatchRequest) -> MatchResult:
    """Claim jobs for the client of a request, unless it disconnects or the deadline passes."""
    answer = await parts.claims.claim(wanted, client.is_gone)
    if answer is None:
        return await await_match(client, parts.claimer, wanted)
    if client.is_gone():
        parts.claims.give_back(wanted, answer)
        raise ClientGone(_GONE)
    return answer


def count_matches(parts: Services, vos: Iterable[str], stated: StatedResource) -> None:
    """Count jobs that were given to a pilot, by VO; sites that the configuration does not have are one."""
    site = stated.site if stated.site in parts.live.current.sites else ""
    for vo in vos:
        parts.metrics.matched(vo=vo, site=site, jobs=1)


def _refuse(parts: Services, reason: str, warnings: tuple[str, ...]) -> bytes:
    parts.metrics.not_matched(reason)
    return _encode_refusal(reason, warnings)


@lru_cache(maxsize=256)
def _encode_refusal(reason: str, warnings: tuple[str, ...]) -> bytes:
    refusal = Matches(
        matches=[], warnings=list(warnings), reason=reason, retry_after=match_request.RETRY_AFTER
    )
    return refusal.model_dump_json(exclude_none=True).encode()


def _encode_job(job: ClaimedJob, config: Configuration) -> bytes:
    """A claimed job as in the JSON of a `Matches`: its description with the defaults of its VO."""
    defaults = options_for(config, job.vo).job_description.list_defaults_json(job.description_json)
    stated: dict[str, object] = {
        "job_id": job.job_id,
        "epoch": job.epoch,
        "lease": job.lease,
        "lease_expires_at": job.lease_expires_at,
        "sandbox": f"sha256:{job.sandbox}" if job.sandbox else None,
        "processors": job.allotment.processors,
        "ram": job.allotment.ram_mb,
        "gpus": job.allotment.gpus,
        "flags": job.flags or None,
        "owner": job.owner,
    }
    return b'%b,"description":%b}' % (
        to_json({name: value for name, value in stated.items() if value is not None})[:-1],
        descriptions.add_defaults(job.description_json, defaults).encode(),
    )


_Place = tuple[StatedResource, QueueAddress | None]


def _read_place(asked: RequestedJobs, config: Configuration, *, is_cached: bool) -> _Place:
    """The stated resource, its place spelled as in the configuration, and its queue; None: none is stated."""
    time_left = asked.time_left
    known = _places.find(asked.stated, config) if is_cached else None
    if known is None:
        record = json.loads(asked.stated)
        read = _read_record(record if time_left is None else record | {"wall_time": time_left}, config)
        return _places.store(asked.stated, read, config) if is_cached else read
    if time_left is None:
        return known
    stated, address = known
    return replace(stated, resource=node_document.set_time(stated.resource, time_left)), address


def _read_record(record: Mapping[str, Any], config: Configuration) -> _Place:
    resource = place_pools.respell_place(match_request.read_resource(record), config)
    return resource, place_pools.find_stated_queue(resource, config)


def _measure(stated: bytes, _: _Place) -> int:
    return match_request.measure((stated,))


#: Bytes of all of them: that of an ordinary node takes 25 kB.
MOST_BYTES: Final = 128 << 20
#: By what is stated: the pilots of one queue send the same text, and a node the same but for its time left.
_places: Cache[bytes, _Place] = Cache(4096, measure=_measure, most=MOST_BYTES)


def _find_no_match(parts: Services, caller: Caller, key: Hashable, time_left: float | None) -> NoMatch | None:
    """A cached and still valid no-match for which the caller needs no further check."""
    no_match = None if key is None else parts.matcher.find_no_match(key, time_left)
    if no_match is None:
        return None
    place = no_match.served.place
    if caller.role is not Role.PILOT:
        pilot_binding.check_site(caller, place.site)
        return no_match
    address = QueueAddress(site=place.site, ce=place.ce, queue=place.queue) if place.queue else None
    known = address is not None and parts.places.is_known(caller, address, now=parts.clock())
    return no_match if known else None


@router.post("/getMatchingTaskQueues")
@allow(Role.DIRECTOR, most_bytes=SMALL)
def get_matching_task_queues(parts: PartsOf, caller: CallerOf, body: ResourceDescription) -> TaskQueues:
    """List the task queues that the resource may serve now, at most 1000: those with the largest weights."""
    resource = place_pools.respell_place(match_request.read_resource(body.to_record()), parts.live.current)
    pilot_binding.check_site(caller, resource.site)
    found = demand.get_matching_task_queues(parts.matcher, resource, _caller(parts, caller, resource))
    return TaskQueues(task_queues=[_task_queue(each) for each in found], warnings=list(resource.warnings))


@router.post("/getDemand")
@allow(Role.DIRECTOR)
def get_demand(parts: PartsOf, caller: CallerOf, body: DemandQuestion) -> DemandAnswer:
    """Count the waiting jobs that many resources may serve now, each task queue once.

    A resource whose queue is unknown, or not for the VOs of the token, serves none.
    """
    config = parts.live.current
    resources = [
        place_pools.respell_place(_read_queue_offer(each.to_record()), config) for each in body.resources
    ]
    for site in {each.site for each in resources}:
        pilot_binding.check_site(caller, site)
    found = demand.count_demand(
        parts.matcher, resources, _caller(parts, caller, resources[0]), parts.demand_counts
    )
    numbers: dict[Flags, int] = {(): 0}
    flags = [[numbers.setdefault(each, len(numbers)) for each in of_queue] for of_queue in found.flags]
    return DemandAnswer(
        task_queues=[_demanded(each, found.waiting[number]) for number, each in found.task_queues.items()],
        resources=found.served,
        ranks=found.ranks,
        flag_sets=[list(each) for each in numbers],
        flags=flags,
    )


def _read_queue_offer(stated: Mapping[str, Any]) -> StatedResource:
    """The offer of a queue, of which its nodes decide what is not stated: only pilots there measure it."""
    read = match_request.read_resource(stated)
    return replace(read, resource=queue_offer.leave_open(read.resource))


def _demanded(task_queue: TaskQueue, waiting: int) -> DemandedTaskQueue:
    required = task_queue.requirement_class
    needs = {name: int(need(required)) for name, need in conditions.NEEDS.items()}
    return DemandedTaskQueue(
        task_queue=task_queue.task_queue_id,
        submit_pool=required.submit_pool,
        waiting=waiting,
        processors=needs["processors"],
        ram=needs["ram"],
        gpus=needs["gpus"],
        whole_node=required.whole_node,
    )


def _queue_names(body: QueuesQuestion) -> list[str]:
    parts = (body.site, body.ce, body.queue)
    stated = [part for part in parts if part is not None]
    if (body.queues is None) == (not stated) or (stated and len(stated) < len(parts)):
        raise InvalidRequest([Problem(path="body", message="needs queues, or Site, CE and Queue")])
    return body.queues if body.queues is not None else ["/".join(stated)]


async def _require_bound(
    parts: Services, caller: Caller, stated: StatedResource, address: QueueAddress | None
) -> None:
    """Check that a pilot may request from the stated queue; None: none is stated."""
    if caller.role is not Role.PILOT:
        return
    if address is None:
        await anyio.to_thread.run_sync(parts.places.require_unbound, caller)
    elif not parts.places.is_known(caller, address, now=parts.clock()):
        processors = stated.resource.processors or 1
        await parts.places.bind_with_others(caller, address, processors=processors, now=parts.clock())


def _caller(parts: Services, caller: Caller, stated: StatedResource) -> match_request.MatchCaller:
    """Operators request for the VOs that they state, by default for all."""
    vos = stated.resource.vos or parts.live.current.vos if caller.is_operator else caller.vos
    return match_request.MatchCaller(subject=caller.subject, vos=vos, queue=caller.queue, stamp=caller.stamp)


def _task_queue(found: MatchingTaskQueue) -> TaskQueueAnswer:
    task_queue, asked = found.task_queue, found.task_queue.requirement_class
    return TaskQueueAnswer(
        task_queue=task_queue.task_queue_id,
        vo=task_queue.vo,
        owner_group=task_queue.owner_group,
        owner=task_queue.owner,
        submit_pool=asked.submit_pool,
        priority=task_queue.priority,
        tier=found.tier,
        waiting=found.waiting,
        definition=json.loads(asked.to_json()),
        job_ids=list(found.job_ids),
    )


async def await_match(client: WaitingClient, claimer: ClaimWorker, wanted: MatchRequest) -> MatchResult:
    """Return the claimer's result, unless the deadline passes or the client disconnects first.

    An abandoned request is not claimed; a claim already made for it is given back at once. `Busy` if too many
    requests wait already.
    """
    loop = asyncio.get_running_loop()
    # The end of the wait, for any reason: one future is cheaper than waiting for several.
    completion: asyncio.Future[None] = loop.create_future()

    def complete(*_: object) -> None:
        if not completion.done():
            completion.set_result(None)

    def complete_from_thread(*_: object) -> None:
        with suppress(RuntimeError):  # the loop is closed
            loop.call_soon_threadsafe(complete)

    ticket = claimer.submit(wanted)
    ticket.future.add_done_callback(complete_from_thread)
    deadline = loop.call_later(wanted.deadline - time.monotonic(), complete)
    gone = asyncio.ensure_future(client.wait_until_gone())
    gone.add_done_callback(complete)
    delivered = False
    try:
        await completion
        if gone.done():
            raise ClientGone(_GONE)
        if not ticket.future.done():
            raise NotInTime("there was no answer in time; try again")
        delivered = True
        return ticket.future.result()
    finally:
        if not delivered:
            claimer.abandon(ticket)
        deadline.cancel()
        gone.cancel()
