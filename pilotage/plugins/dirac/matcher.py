"""WorkloadManagement/Matcher: jobs for genuine JobAgents, task queues for SiteDirectors."""

import json
import time
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Final

import anyio.to_thread

from cs_config.options.operations import options_for
from cs_config.tree.address import QueueAddress
from matcher import demand
from matcher.index import place_pools
from matcher.request import match_request
from matcher.request.match_request import MatchCaller, MatchRequest
from pilotage.plugins.dirac import dialect, jencode, peers, pilot_manager, sandbox_store
from pilotage.plugins.dirac.jencode import Result
from pilotage.plugins.dirac.peers import DiracCall, Method
from pilotage.service import deadline, lease_reports
from pilotage.service.clients import find_client
from pilotage.service.routes import matcher as routes
from requirements.errors import InvalidJob, NotAllowed
from requirements.values import fold
from taskqueue.db import database
from taskqueue.jobs import descriptions, jobs
from taskqueue.leases import attempts, marks
from taskqueue.leases.attempts import AttemptTimes
from taskqueue.leases.opening import ClaimedJob
from taskqueue.leases.reports import FinishReport, PayloadResult, Sender
from taskqueue.ownership import OwnershipFilter
from taskqueue.task_queues import listing
from taskqueue.task_queues.listing import TaskQueueFilter
from taskqueue.task_queues.task_queues import TaskQueue

#: Seconds. A genuine JobWrapper reports every half an hour, and may prepare for long before its job runs.
TIMES: Final = AttemptTimes(lease=7_200, stalled=7_200, grace=14_400)
#: Most task queues in one list.
_LISTED: Final = 10_000
_UNREADABLE: Final = "Description cannot be written for DIRAC"


async def request_job(call: DiracCall, resource: dict[str, Any] | str) -> Result:
    """One job for a JobAgent; it starts it with the first status that it reports."""
    if isinstance(resource, str):
        raise NotAllowed("a resource as JDL is not supported: send a record")
    routes.require_ready(call.parts)
    config, limits = call.parts.live.current, call.parts.limits
    presented = match_request.read_resource(_describe(call, resource))
    place = place_pools.respell_place(presented, config)
    address = QueueAddress(site=place.site, ce=place.ce, queue=place.queue)
    queue = address if config.knows(address) else None
    note = database.retry_on_conflict(pilot_manager.note_request)
    vos, reference = _vos(call, resource), resource.get("PilotReference")
    wanted = MatchRequest(
        presented=replace(place, stamp=await anyio.to_thread.run_sync(note, call, vos, reference, queue)),
        caller=_caller(call, resource),
        deadline=time.monotonic() + limits.longest_request_timeout,
        times=TIMES,
    )
    answer = await routes.claim_jobs(call.parts, find_client(call.request), wanted)
    call.parts.wait_causes.count(wanted, answer)
    hand_over = database.retry_on_conflict(_hand_over)
    for match in answer.matches:
        routes.count_matches(call.parts, [match.vo], wanted.presented)
        try:
            handed = await anyio.to_thread.run_sync(hand_over, call, match, reference)
            deadline.require_waiting()
        except BaseException:  # also of a cancelled request: the JobAgent has not got the job
            call.parts.claims.give_back(wanted, answer)
            raise
        return handed
    call.parts.metrics.not_matched(answer.reason or "")
    return jencode.error(answer.reason or "", jencode.NO_MATCH)


def _describe(call: DiracCall, resource: dict[str, Any]) -> dict[str, Any]:
    """A resource as our matcher reads it, with the owners whose jobs the peer may take.

    A JobAgent that does not know its memory writes 0: then nothing is stated.
    """
    given = {name: value for name, value in resource.items() if value not in (None, "", [], "Unknown")}
    if "CEQueue" in given:
        given.setdefault("Queue", given["CEQueue"])
    if given.get("MaxRAM") in (0, "0"):
        del given["MaxRAM"]
    given["VO"] = sorted(_vos(call, resource))
    given.pop("VirtualOrganization", None)
    peer = call.peer
    if not peer.has(peers.GENERIC_PILOT) and not peer.is_host:
        given["OwnerGroup"] = peer.group
        if not peer.has(peers.JOB_SHARING):
            given["Owner"] = peer.user
    return given


def _vos(call: DiracCall, resource: dict[str, Any]) -> frozenset[str]:
    """The VOs whose jobs the peer may take; a host says which."""
    if not call.peer.is_host:
        return call.peer.vos
    stated = next(
        (resource[name] for name in ("VirtualOrganization", "VO", "Community") if resource.get(name)), None
    )
    named = stated if isinstance(stated, list) else [stated] if stated else []
    return call.peer.vos & frozenset(fold(str(each)) for each in named) if named else call.peer.vos


def _caller(call: DiracCall, resource: dict[str, Any]) -> MatchCaller:
    if call.peer.is_host and not call.peer.has(peers.GENERIC_PILOT):
        raise NotAllowed(f"the host {call.peer.user} may not take jobs: it is not a {peers.GENERIC_PILOT}")
    return MatchCaller(subject=call.peer.holder, vos=_vos(call, resource))


def _hand_over(call: DiracCall, match: ClaimedJob, reference: object) -> Result:
    """Note who has the job, and write its description as DIRAC reads it."""
    found = [call.peer.mark]
    if pilot_manager.is_reference(reference):
        found.append(pilot_manager.make_stamp(match.vo, reference))
    with database.writing(call.parts.engine) as conn:
        job = jobs.get_job(conn, match.job_id)
        attempt = attempts.get_attempt(conn, match.lease)
        for mark in found:
            marks.store_mark(conn, attempt, mark)
    config = call.parts.live.current
    defaults = options_for(config, match.vo).job_description.list_defaults_json(match.description_json)
    body = json.loads(descriptions.add_defaults(match.description_json, defaults))
    try:
        text = dialect.write_jdl(sandbox_store.add_sandbox(body, match.sandbox, job), job)
    except InvalidJob as fault:
        result = PayloadResult(status="Failed", minor_status=_UNREADABLE, application_status=str(fault)[:255])
        report = FinishReport(lease=match.lease, sender=Sender(subject=None), result=result)
        lease_reports.store_reports(call.parts.engine, [report], config=config, now=call.parts.clock())
        return jencode.error(f"job {job.job_id}: {fault}", jencode.NO_MATCH)
    user = config.registry.users.get(job.owner)
    return jencode.ok(
        {
            "JDL": text,
            "JobID": job.job_id,
            "Owner": job.owner,
            "Group": job.owner_group,
            "DN": user.dn[0] if user and user.dn else job.owner,
            "PilotInfoReportedFlag": True,
        }
    )


def get_matching_task_queues(call: DiracCall, resource: dict[str, Any]) -> Result:
    """The task queues that a resource may serve now, by id; an unknown queue serves none."""
    presented = match_request.read_resource({"CPUTime": match_request.LARGEST} | _describe(call, resource))
    place = place_pools.respell_place(presented, call.parts.live.current)
    caller = MatchCaller(subject=call.peer.holder, vos=_vos(call, resource))
    found = demand.get_matching_task_queues(call.parts.matcher, place, caller)
    return jencode.ok(
        {str(each.task_queue.task_queue_id): _describe_queue(each.task_queue, each.waiting) for each in found}
    )


def get_active_task_queues(call: DiracCall) -> Result:
    """The task queues with jobs that the peer may see, by id; all of a VO for its pilots and for hosts."""
    peer = call.peer
    which = [TaskQueueFilter(visible=(OwnershipFilter(vos=peer.vos),))]
    if not (peer.is_host or peer.has(peers.GENERIC_PILOT) or peer.has(peers.JOB_ADMINISTRATOR)):
        own = OwnershipFilter(vos=peer.vos, owner=peer.user)
        which = [TaskQueueFilter(visible=(own,))]
        if peer.has(peers.JOB_SHARING):
            which.append(TaskQueueFilter(visible=(OwnershipFilter(vos=peer.vos),), owner_group=peer.group))
    with database.reading(call.parts.engine) as conn:
        found = [each for one in which for each in listing.list_task_queues(conn, one, limit=_LISTED)]
    return jencode.ok(
        {
            str(each.task_queue.task_queue_id): _describe_queue(each.task_queue, each.waiting)
            for each in found
            if each.waiting
        }
    )


def _describe_queue(queue: TaskQueue, waiting: int) -> dict[str, object]:
    asked = queue.requirement_class
    names = {
        "Sites": asked.sites,
        "BannedSites": asked.banned_sites,
        "GridCEs": asked.grid_ces,
        "Platforms": asked.platforms,
        "JobTypes": asked.job_types,
        "Tags": asked.tags,
    }
    return {
        "Owner": queue.owner,
        "OwnerGroup": queue.owner_group,
        "VO": queue.vo,
        "CPUTime": asked.cpu_time,
        "Priority": round(queue.priority, 2),
        "Jobs": waiting,
        **{name: sorted(values) for name, values in names.items() if values},
    }


METHODS: Final[Mapping[str, Method]] = {
    "requestJob": request_job,
    "getActiveTaskQueues": get_active_task_queues,
    "getMatchingTaskQueues": get_matching_task_queues,
}
