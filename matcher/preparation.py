"""What a request for work comes down to before anything is claimed: a wish, or the answer already."""

from collections.abc import Sequence
from datetime import timedelta

from cs_config.operations import operations
from matcher import gates, places
from matcher.candidates import by_and_by, in_order
from matcher.claiming import Look, Wish
from matcher.gate import Gate
from matcher.idle import Vain
from matcher.lottery import Draw
from matcher.notes import Notes
from matcher.requests import MatchRequest
from matcher.resource import Presented, Resource
from matcher.served import Served
from matcher.view import View
from requirements.errors import PilotageError
from taskqueue import pilots
from taskqueue.claims import Holder, Place
from taskqueue.task_queues import TaskQueue

#: Why there is nothing, where no gate says so.
#: The queue is switched off, or not for the VOs of the pilot.
NOT_USABLE = "not_usable"
#: Jobs wait that another node of the queue may run.
NODE = "node"


def prepare(view: View, request: MatchRequest, notes: Notes) -> Wish | Look | PilotageError:
    """What a request comes down to; a look if it is answered without a claim."""
    presented = request.presented
    try:
        view.require_one_place(presented, request.caller)
        served, resource = view.place(presented, request.caller, likeness=request.likeness)
    except PilotageError as error:
        return error
    if served is None:
        return Look(refused=NOT_USABLE)
    if within := gates.below(view.config, served.place, resource.named_vos):
        return places.not_exact(served.place, within[0])
    # Before the look, so that nothing that comes during it is missed.
    changed = view.memory.waiting.changed
    fitting = view.wanted(presented, served.pools, resource)
    candidates, keeper = view.admitted(served.place, resource, fitting)
    otherwise = _elsewhere(view, presented, served, resource, notes)
    if not candidates and otherwise is None:
        if not fitting:
            _remember_vain(view, request, served, resource, changed)
        return Look()
    due = notes.are_due(served.place, resource, view.now)
    # A look without locks, so that polling at a closed place costs no writing; seldom where one was open.
    gate = view.gate(served.place) if due or served.place not in view.memory.open else None
    if refused := _refusal(view, gate, candidates, served.place, request.count):
        notes.kept_out(refused, candidates, served.place, resource, view.now)
        return Look(refused=refused)
    if not candidates:
        return Look(refused=otherwise)
    return Wish(
        request=request,
        resource=resource,
        place=served.place,
        holder=_holder(view, request, served.place),
        drawn=Draw(in_order(candidates, view.random)),
        keeper=keeper,
        fitting=notes.let_in(view, gate, candidates, served.place) if due else (),
        otherwise=otherwise,
        counted=view.counts(served.place),
    )


def _elsewhere(
    view: View, presented: Presented, served: Served, resource: Resource, notes: Notes
) -> str | None:
    """`node` if there are jobs that another node of the queue may run."""
    if not served.kept_back:
        return None
    fitting = view.wanted(presented, served.kept_back, resource)
    kept_back = [each for each in fitting if each.requirement_class.submit_pool in served.kept_back]
    notes.kept_out(NODE, kept_back, served.place, resource, view.now)
    return NODE if kept_back else None


def _holder(view: View, request: MatchRequest, place: Place) -> Holder:
    """Who asks; who is no pilot itself may ask for one of its VOs at its place, not for any other."""
    vos = request.caller.vos
    stamp = request.caller.stamp
    stated = None if stamp else request.presented.stamp
    if stated and pilots.is_at(view.conn, stated, site=place.site, vos=vos):
        stamp = stated
    leases = operations(view.config, min(vos) if len(vos) == 1 else None).leases
    return Holder(
        subject=request.caller.subject,
        stamp=stamp,
        lease_time=timedelta(seconds=leases.time),
    )


def _remember_vain(
    view: View, request: MatchRequest, served: Served, resource: Resource, changed: int
) -> None:
    """No task queue has a job that fits: who says the same again need not be looked at again.

    Not where one job was asked for, or where more than the mapping and the configuration decide.
    """
    presented = request.presented
    if request.likeness is None or presented.job_id is not None or presented.several:
        return
    if served.lasting and not served.kept_back:
        vain = Vain(
            resource=resource,
            served=served,
            warnings=presented.warnings,
            config=view.config,
            age=view.age,
            changed=changed,
        )
        view.memory.idle.note(request.likeness, vain)


def _refusal(
    view: View, gate: Gate | None, candidates: Sequence[TaskQueue], place: Place, count: int
) -> str | None:
    """Why the place lets nothing through now."""
    if gate is None or (gate.most(count) and gate.admits_any(view.conn, by_and_by(candidates), place)):
        return None
    return gate.refused
