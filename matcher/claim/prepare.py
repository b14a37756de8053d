"""Preparation of a request: a claim request, or an answer that needs no claim."""

from collections.abc import Iterable, Mapping, Sequence
from datetime import timedelta
from functools import partial

from cs_config.options import bounds
from cs_config.options.operations import options_for
from cs_config.options.options import VoOptions
from cs_config.tree.address import QueueAddress
from matcher.claim.claim_request import ClaimRequest, ClaimResult
from matcher.claim.snapshot import NODE_FEATURES, NoMatch, PreparedPlace, Snapshot
from matcher.index import place_pools
from matcher.index.place_pools import PlacePools
from matcher.index.sampling import CandidateOrder
from matcher.index.waiting import draw_candidates, iterate_candidates
from matcher.limits import floors, place_policy
from matcher.limits.place_policy import PlacePolicy
from matcher.request import node_document
from matcher.request.match_request import MatchRequest
from requirements.errors import PilotageError
from requirements.resource import Location, Resource, StatedResource
from taskqueue.db.database import NeedsDatabase
from taskqueue.db.sql import split_growing
from taskqueue.leases.opening import LeaseHolder
from taskqueue.pilots import pilots
from taskqueue.pilots.slots import SlotLimits
from taskqueue.sites import closures, scopes
from taskqueue.task_queues.task_queues import TaskQueue

#: The queue is disabled, or not for the VOs of the pilot.
NOT_USABLE = "not_usable"
#: Waiting jobs fit only other nodes of the queue, by its node attributes.
NODE = "node"


def prepare(view: Snapshot, request: MatchRequest) -> ClaimRequest | ClaimResult | PilotageError:
    """A request's candidates; a `ClaimResult` if it can be answered without a claim."""
    presented = request.presented
    here = find_place(view, request)
    if not isinstance(here, PreparedPlace):
        return here
    if (closed := _find_closed_part(view, here.served.place)) is not None:
        return place_pools.inexact_place_error(here.served.place, closed)
    served, in_memory = here.served, view.in_memory
    timed = node_document.set_time(here.resource, request.time_left)
    resource = view.bound_by_downtime(timed, served.place)
    is_closed = view.calendar.closes(served.place)
    is_restricted = here.is_restricted or is_closed
    open_places = view.memory.open_places
    is_open = is_restricted and open_places.is_open(served.place, view.config)
    locks = None if is_closed else here.locks
    if in_memory and is_restricted and not (is_open and locks):
        raise NeedsDatabase
    # Before the index is read, so that no later change is missed.
    changed = view.memory.waiting.changed
    fitting = view.candidates(served.pools, resource, job_id=presented.job_id)
    candidates, admission = view.admit(here.policy, fitting)
    # A request that gets no job from memory is prepared again: no reason is needed then.
    has_others = bool(served.kept_back) and not in_memory
    kept_back = _list_kept_back(view, presented, here, resource) if has_others else ()
    if not candidates and is_closed and (barred := _find_barred(view, presented, here, timed)):
        return barred
    if not candidates and not kept_back:
        return ClaimResult() if fitting else _answer_no_match(view, request, served, resource, changed)
    holder = _holder(view, request, here)
    if in_memory and admission is not None:
        raise NeedsDatabase
    # Checked without locks, so that polling at a closed place costs no write; skipped where a job was just
    # given.
    gate = None
    owners = frozenset[str]() if in_memory else view.find_owners(served.place, resource)
    if is_restricted and not is_open:
        gate = view.gate(served.place, resource=resource, count=request.count, holder=holder, owners=owners)
    if gate and (refused := _refusal_reason(view, gate, candidates, served.place, request.count)):
        return _give_reason(view, {refused: candidates, NODE: kept_back})
    if not candidates:
        return _give_reason(view, {NODE: kept_back})
    return ClaimRequest(
        request=request,
        resource=resource,
        place=served.place,
        holder=holder,
        drawn=CandidateOrder(draw_candidates(candidates, view.random, here.tiers)),
        draw=partial(draw_candidates, candidates, view.random, here.tiers),
        admission=admission,
        otherwise=_give_reason(view, {NODE: kept_back}).refused if kept_back else None,
        config=view.config,
        is_restricted=is_restricted,
        owners=owners,
        locks=locks,
        allotments=here.allotments,
    )


def find_place(view: Snapshot, request: MatchRequest) -> PreparedPlace | ClaimResult | PilotageError:
    """Everything that depends neither on the waiting jobs nor on the time left of a node.

    Cached by cache key, configuration and mapping.
    """
    presented, known = request.presented, view.memory.prepared
    generation = view.config, view.age
    if request.cache_key is not None and (here := known.find(request.cache_key, generation)) is not None:
        view.memory.lookups["hit"] += 1
        return here
    view.memory.lookups["miss"] += 1
    try:
        if presented.several:
            view.require_one_place(presented, request.caller)
        served, resource = view.place(presented, request.caller)
    except PilotageError as error:
        return error
    if served is None:
        return ClaimResult(refused=NOT_USABLE)
    place = served.place
    if not place.queue:
        within = place_policy.list_scopes_below(view.config, place, resource.named_vos)
        if within:
            return place_pools.inexact_place_error(place, within[0])
        # Whether work of their VOs fits is known by queue.
        if not floors.list_vos(view.config, place.site) <= resource.named_vos:
            return place_pools.kept_site_error(place)
    vos = request.caller.vos
    of_vos = {vo: options_for(view.config, vo) for vo in vos}
    options = of_vos[min(vos)] if len(vos) == 1 else options_for(view.config, None)
    here = PreparedPlace(
        served=served,
        resource=resource,
        policy=view.memory.admission_policies.policy_at(view.config, place, resource.named_vos),
        is_restricted=place_policy.counts_jobs(view.config, place),
        locks=place_policy.find_lock(view.config, place, resource.named_vos),
        lease_time=timedelta(seconds=options.leases.time),
        lease_times={
            vo: timedelta(seconds=time)
            for vo, own in of_vos.items()
            if (time := own.leases.time) != options.leases.time
        },
        tiers={vo: tiers for vo, own in of_vos.items() if (tiers := own.job_scheduling.job_priorities)},
        slot=None if request.caller.stamp is None else _read_slot(view, place, vos, options),
    )
    # Closures may change at any moment, and so what several places mean, or none.
    is_one = bool(place.site) and not presented.several
    if request.cache_key is not None and served.lasting and is_one:
        known.store(request.cache_key, here, generation)
    return here


def _find_closed_part(view: Snapshot, place: Location) -> str | None:
    """A closed scope inside a place that is stated without its queue: the job might run there."""
    return None if place.queue else min(scopes.list_inside(view.calendar.closed, place), default=None)


def _read_slot(view: Snapshot, place: Location, vos: frozenset[str], options: VoOptions) -> SlotLimits:
    """The limits of a pilot of these VOs at a place."""
    queue = QueueAddress(site=place.site, ce=place.ce, queue=place.queue) if place.queue else None
    most = None if queue is None else view.slot_bounds(queue, vos).processors
    return SlotLimits(
        processors=bounds.PROCESSORS if most is None else most, claims=options.limits.pilot_claims_per_hour
    )


def _list_kept_back(
    view: Snapshot, presented: StatedResource, here: PreparedPlace, resource: Resource
) -> Sequence[TaskQueue]:
    """The task queues whose jobs the queue admits, but which fit only other nodes of it."""
    pools = here.served.kept_back
    fitting = view.candidates(pools, resource, job_id=presented.job_id)
    admitted, _ = view.admit(here.policy, fitting)
    return [each for each in admitted if each.requirement_class.submit_pool in pools]


def _find_barred(
    view: Snapshot, presented: StatedResource, here: PreparedPlace, resource: Resource
) -> ClaimResult | None:
    """No job, for the closure of a place; None: no job is kept out by it alone.

    `resource` is not bounded by the next downtime: what is closed now comes before what will be.
    """
    fitting = view.candidates(here.served.pools, resource, job_id=presented.job_id)
    admitted, _ = view.admit(here.policy, fitting)
    barred = (
        each
        for each in iterate_candidates(admitted)
        if not any(map(closures.is_test, each.requirement_class.job_types))
    )
    found = _give_reason(view, {place_policy.BANNED: barred})
    return found if found.refused or found.emptied else None


def _give_reason(view: Snapshot, kept_out: Mapping[str, Iterable[TaskQueue]]) -> ClaimResult:
    """No job, for the first reason that keeps out a waiting one; `kept_out` has its task queues.

    Without a reason if nothing waits: jobs may be gone while their task queues are still known.
    """
    emptied: set[int] = set()
    for reason, known in kept_out.items():
        for piece in split_growing(iterate_candidates(known)):
            ids = {each.task_queue_id for each in piece}
            filled = view.find_filled(ids)
            emptied |= ids - filled
            if filled:
                return ClaimResult(refused=reason, emptied=frozenset(emptied))
    return ClaimResult(emptied=frozenset(emptied))


def _holder(view: Snapshot, request: MatchRequest, here: PreparedPlace) -> LeaseHolder:
    """The lease holder.

    A caller that is no pilot itself may name one of its VOs at the same site, no other.
    """
    stamp = request.caller.stamp
    stated = None if stamp else request.presented.stamp
    if stated and pilots.is_at(view.conn, stated, site=here.served.place.site, vos=request.caller.vos):
        stamp = stated
    return LeaseHolder(
        subject=request.caller.subject,
        stamp=stamp,
        lease_time=timedelta(seconds=request.times.lease) if request.times else here.lease_time,
        times=request.times,
        lease_times=here.lease_times,
        slot=here.slot,
    )


def _answer_no_match(
    view: Snapshot, request: MatchRequest, served: PlacePools, resource: Resource, changed: int
) -> ClaimResult:
    """No job, since no task queue has one that fits; cached.

    Not for requests of one job, or if more than the mapping and the configuration decides.
    """
    presented = request.presented
    if presented.job_id is not None or view.in_memory:  # the latter is prepared again, as above
        return ClaimResult()
    any_node = view.open_to_nodes(resource, served.place)
    fits_others = any_node is not None and view.has_fitting_class(served.pools, any_node)
    refused = NODE_FEATURES if fits_others else None
    if request.cache_key is not None and not presented.several and served.lasting and not served.kept_back:
        no_match = NoMatch(
            resource=resource,
            time_left=request.time_left,
            served=served,
            warnings=presented.warnings,
            config=view.config,
            age=view.age,
            changed=changed,
            ends=view.calendar.find_begin(served.place),
            any_node=any_node,
            refused=refused,
        )
        view.memory.no_matches.store(request.cache_key, no_match)
    return ClaimResult(refused=refused)


def _refusal_reason(
    view: Snapshot, gate: PlacePolicy, candidates: Sequence[TaskQueue], place: Location, count: int
) -> str | None:
    """The reason why the place admits nothing now."""
    if gate.most(count) and gate.admits_any(view.conn, iterate_candidates(candidates), place):
        return None
    return gate.refused
