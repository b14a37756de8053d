"""The matcher: pools of queues, jobs for pilots, task queues for directors."""

import json
import time
from collections.abc import Hashable, Iterable, Sequence
from functools import lru_cache
from typing import Annotated

import anyio.to_thread
from fastapi import APIRouter, Header, Request
from pydantic_core import to_json

from cs_config.tree.address import QueueAddress
from matcher.cache import NoMatch
from matcher.claim import matcher as matching
from matcher.claim.matching_task_queues import MatchingTaskQueue
from matcher.index import place_pools
from matcher.request import match_request
from matcher.request.match_request import MatchRequest
from matcher.request.resource import StatedResource
from pilotage.service import await_match
from pilotage.service.auth import pilot_binding
from pilotage.service.auth.access import allow
from pilotage.service.auth.callers import Caller, Role
from pilotage.service.models.matching import (
    JobRequest,
    MatchedJob,
    Matches,
    PilotGroupAnswer,
    QueuePoolsAnswer,
    QueuesQuestion,
    ResourceDescription,
    TaskQueueAnswer,
    TaskQueues,
    UnknownQueue,
)
from pilotage.service.routing import SMALL, ApiRoute, CallerOf, PartsOf, takes_at_most
from pilotage.service.services import Services
from requirements.errors import InvalidRequest, NotAllowed, Problem

router = APIRouter(prefix="/matcher", tags=["matcher"], route_class=ApiRoute)

#: Longest resource description, in characters, that is cached.
_CACHED_LENGTH = 8192

RequestTimeout = Annotated[
    float | None,
    Header(
        gt=0, le=86_400, description="Seconds that the client waits; jobs that arrive later are not claimed."
    ),
]


@router.post("/getSubmitPoolsForQueue", response_model_exclude_unset=True)
@allow(Role.DIRECTOR, Role.GATEWAY, Role.PILOT)
def get_submit_pools_for_queue(parts: PartsOf, caller: CallerOf, body: QueuesQuestion) -> QueuePoolsAnswer:
    """List the ids of the pools that each queue is eligible for; with `flags` grouped by pilots' flags.

    Unknown queues are listed apart; 404 only if all are unknown.
    """
    names = _queue_names(body)
    if caller.role is Role.PILOT and len(set(names)) > 1:
        raise NotAllowed("a pilot may only request its own queue")
    vos = _vos(parts, caller)
    pools, unknown = parts.matcher.get_submit_pools(vos, names)
    addresses = frozenset(QueueAddress.parse(name) for name in pools)
    pilot_binding.check_queues(caller, addresses)
    if caller.role is Role.PILOT:
        for address in addresses:
            parts.places.bind(caller, address, now=parts.clock())
    answer = QueuePoolsAnswer(
        pools=dict(pools),
        unknown=[UnknownQueue(queue=str(each.name), did_you_mean=each.suggestion) for each in unknown],
    )
    if body.flags:
        answer.flags = _pilot_groups(parts, vos, pools)
    return answer


def _pilot_groups(
    parts: Services, vos: frozenset[str], queues: Iterable[str]
) -> dict[str, list[PilotGroupAnswer]]:
    groups, _ = parts.matcher.get_pilot_groups(vos, list(queues))
    return {
        name: [PilotGroupAnswer(flags=list(each.flags), pools=list(each.pools)) for each in of_queue]
        for name, of_queue in groups.items()
    }


@router.post("/requestJob", response_model_exclude_none=True)
@allow(Role.GATEWAY, Role.PILOT)
@takes_at_most(SMALL)
async def request_job(
    parts: PartsOf,
    caller: CallerOf,
    request: Request,
    body: JobRequest,
    request_timeout: RequestTimeout = None,
) -> Matches:
    """Request jobs: the answer has jobs with their leases, or the reason for none and when to try again."""
    stated = to_json(body.to_record())
    key = _cache_key(caller, stated)
    if not body.may_have_been_answered and (no_match := _find_no_match(parts, caller, key)):
        return _nothing(parts, matching.NO_TASK_QUEUE, no_match.warnings)
    resource = place_pools.respell_place(_read(stated), parts.live.current)
    address = await _require_bound(parts, caller, resource)
    limits = parts.limits
    seconds = min(request_timeout or limits.request_timeout, limits.longest_request_timeout)
    wanted = MatchRequest(
        presented=resource,
        caller=_caller(parts, caller, resource),
        deadline=time.monotonic() + seconds,
        count=body.count,
        request_id=body.request_id,
        cache_key=key,
    )
    answer = await await_match.answer_of(request, parts.claimer, wanted)
    site = address.site if address else resource.site
    for match in answer.matches:
        parts.metrics.matched(vo=match.vo, site=site, jobs=1)
    if answer.reason:
        return _nothing(parts, answer.reason, answer.warnings)
    return Matches(
        matches=[
            MatchedJob(
                job_id=match.job_id,
                epoch=match.epoch,
                lease=match.lease,
                lease_expires_at=match.lease_expires_at,
                description=dict(match.description),
                sandbox=f"sha256:{match.sandbox}" if match.sandbox else None,
                processors=match.allotment.processors,
                ram=match.allotment.ram_mb,
                gpus=match.allotment.gpus,
            )
            for match in answer.matches
        ],
        warnings=list(answer.warnings),
    )


def _nothing(parts: Services, reason: str, warnings: Sequence[str]) -> Matches:
    parts.metrics.not_matched(reason)
    return Matches(matches=[], warnings=list(warnings), reason=reason, retry_after=match_request.RETRY_AFTER)


def _cache_key(caller: Caller, stated: bytes) -> Hashable:
    """Equal for requests with the same resource and the same rights; None: too long to cache."""
    return (stated, caller.role, caller.vos, caller.queue) if len(stated) <= _CACHED_LENGTH else None


def _read(stated: bytes) -> StatedResource:
    """Parse a resource; cached, since the pilots of one queue send the same text."""
    return (
        _read_once(stated)
        if len(stated) <= _CACHED_LENGTH
        else match_request.read_resource(json.loads(stated))
    )


@lru_cache(maxsize=2048)
def _read_once(stated: bytes) -> StatedResource:
    return match_request.read_resource(json.loads(stated))


def _find_no_match(parts: Services, caller: Caller, key: Hashable) -> NoMatch | None:
    """A cached and still valid no-match for which the caller needs no further check."""
    no_match = None if key is None else parts.matcher.find_no_match(key)
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
@allow(Role.DIRECTOR)
@takes_at_most(SMALL)
def get_matching_task_queues(parts: PartsOf, caller: CallerOf, body: ResourceDescription) -> TaskQueues:
    """List all task queues that the resource may serve now."""
    resource = place_pools.respell_place(match_request.read_resource(body.to_record()), parts.live.current)
    pilot_binding.check_site(caller, resource.site)
    found = parts.matcher.get_matching_task_queues(resource, _caller(parts, caller, resource))
    return TaskQueues(task_queues=[_task_queue(each) for each in found], warnings=list(resource.warnings))


def _queue_names(body: QueuesQuestion) -> list[str]:
    parts = (body.site, body.ce, body.queue)
    stated = [part for part in parts if part is not None]
    if (body.queues is None) == (not stated) or (stated and len(stated) < len(parts)):
        raise InvalidRequest([Problem(path="body", message="needs queues, or Site, CE and Queue")])
    return body.queues if body.queues is not None else ["/".join(stated)]


async def _require_bound(parts: Services, caller: Caller, stated: StatedResource) -> QueueAddress | None:
    """The stated queue, after checking that the caller may request from there; None: none is stated."""
    address = place_pools.find_stated_queue(stated, parts.live.current)
    if caller.role is not Role.PILOT:
        pilot_binding.check_site(caller, stated.site)
    elif address is None:
        await anyio.to_thread.run_sync(parts.places.require_unbound, caller)
    elif not parts.places.is_known(caller, address, now=parts.clock()):
        await anyio.to_thread.run_sync(lambda: parts.places.bind(caller, address, now=parts.clock()))
    return address


def _caller(parts: Services, caller: Caller, stated: StatedResource) -> match_request.MatchCaller:
    """Operators request for the VOs that they state, by default for all."""
    vos = stated.resource.vos if caller.is_operator else None
    return match_request.MatchCaller(
        subject=caller.subject,
        vos=vos or _vos(parts, caller),
        queue=caller.queue,
        stamp=caller.stamp,
    )


def _vos(parts: Services, caller: Caller) -> frozenset[str]:
    return parts.live.current.vos if caller.is_operator else caller.vos


def _task_queue(found: MatchingTaskQueue) -> TaskQueueAnswer:
    task_queue = found.task_queue
    return TaskQueueAnswer(
        task_queue=task_queue.task_queue_id,
        vo=task_queue.vo,
        owner_group=task_queue.owner_group,
        owner=task_queue.owner,
        submit_pool=task_queue.requirement_class.submit_pool,
        priority=task_queue.priority,
        waiting=found.waiting,
        definition=json.loads(task_queue.requirement_class.to_json()),
        job_ids=list(found.job_ids),
    )
