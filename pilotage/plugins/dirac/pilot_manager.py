"""WorkloadManagement/PilotManager: pilots of DIRAC, for installations without DIRAC's own PilotManager.

A pilot is named by its reference, which the CE gave to it; ours has a stamp made from its VO and the
reference. A pilot is seen and changed by what registered it, pilots' groups and administrators of its VO.

Source: DIRAC 9.1, `PilotManagerHandler.py`, `PilotAgentsDB.py`.
"""

import hashlib
from collections.abc import Collection, Mapping, Sequence
from typing import Annotated, Any, Final, TypeGuard

from pydantic import BeforeValidator, Field
from sqlalchemy import Connection

from cs_config.options import bounds
from cs_config.options.operations import options_for
from cs_config.tree.address import NAME, QueueAddress
from pilotage.plugins.dirac import jencode, peers
from pilotage.plugins.dirac.jencode import Result
from pilotage.plugins.dirac.peers import DiracCall, JobId, Method
from requirements.errors import InvalidRequest, NotAllowed, Problem
from requirements.states import PilotStatus
from requirements.values import fold
from taskqueue.db import database
from taskqueue.leases import attempts
from taskqueue.ownership import OwnershipFilter
from taskqueue.pilots import pilots, search
from taskqueue.pilots.pilots import FirstRequest, Pilot, StatusReport
from taskqueue.pilots.search import PilotFilter

#: A pilot's reference.
Reference = Annotated[str, Field(min_length=1, max_length=bounds.NAME)]
_IN_LIST: Final = BeforeValidator(lambda given: given if isinstance(given, list) else [given])
#: References: a list, or one.
References = Annotated[Annotated[list[Reference], Field(max_length=bounds.DIRAC_PILOTS)], _IN_LIST]
ReadReferences = Annotated[Annotated[list[Reference], Field(max_length=bounds.DIRAC_PILOTS_READ)], _IN_LIST]
#: Statuses that only older releases have.
_OLD_STATUSES: Final = {"Scheduled": PilotStatus.WAITING}
#: Most jobs of one pilot in an answer.
_JOBS: Final = 1_000
_UNKNOWN_REFERENCE: Final = "Unknown"
#: Conditions on the place of a pilot, and one that all pilots of a CE fulfil.
_PLACES: Final = frozenset({"DestinationSite", "GridSite", "Queue"})
_GRID_TYPE: Final = "GridType"


def make_stamp(vo: str, reference: str) -> str:
    """Our stamp of a pilot of DIRAC."""
    return f"dirac-{hashlib.sha256(f'{vo} {reference}'.encode()).hexdigest()[:32]}"


def is_reference(given: object) -> TypeGuard[str]:
    """Whether a resource names its pilot with this value."""
    return isinstance(given, str) and given not in ("", _UNKNOWN_REFERENCE)


def note_request(
    call: DiracCall, vos: Collection[str], reference: object, queue: QueueAddress | None
) -> str | None:
    """The stamp of the registered pilot that requests a job; it runs, at the first queue that it names."""
    if not is_reference(reference):
        return None
    with database.reading(call.parts.engine) as conn:
        found = [each for each in _find(conn, call, [reference], vos) if _is_visible(call, each)]
    if not found:
        return None
    [pilot] = found[:1]
    if queue is not None and not (pilot.site and pilot.status is PilotStatus.RUNNING):
        request = FirstRequest(stamp=pilot.stamp, vo=pilot.vo, queue=queue)
        with database.writing(call.parts.engine) as conn:
            pilots.bind_queues(conn, [request], now=call.parts.clock())
    return pilot.stamp


def _find(
    conn: Connection, call: DiracCall, references: Sequence[str], vos: Collection[str] | None = None
) -> Sequence[Pilot]:
    known = call.peer.vos if vos is None else vos
    stamps = {make_stamp(vo, reference) for vo in known for reference in references}
    return sorted(pilots.read_pilots(conn, stamps), key=lambda each: each.created_at)


def _is_visible(call: DiracCall, pilot: Pilot) -> bool:
    peer = call.peer
    if pilot.vo not in peer.vos:
        return False
    return peer.holder == pilot.submitted_by or _manages(call)


def _manages(call: DiracCall) -> bool:
    return call.peer.has(peers.GENERIC_PILOT) or call.peer.has(peers.JOB_ADMINISTRATOR)


def add_references(
    call: DiracCall,
    references: References,
    vo: str,
    grid_type: str = "DIRAC",  # noqa: ARG001
    stamps: dict[str, str] | None = None,  # noqa: ARG001  (of DIRAC's remote logs)
) -> Result:
    """Register pilots that were submitted; a second time changes nothing."""
    own = fold(vo)
    if own not in call.peer.vos:
        raise NotAllowed(f"{call.peer.user} may register pilots of {', '.join(sorted(call.peer.vos))} only")
    now = call.parts.clock()
    with database.writing(call.parts.engine) as conn:
        known = {each.stamp for each in _find(conn, call, references, {own}) if _is_visible(call, each)}
        by_stamp = {make_stamp(own, each): each for each in references}
        new = sorted((stamp, each) for stamp, each in by_stamp.items() if stamp not in known)
        if not new:
            return jencode.ok()
        _require_room(conn, call, len(new))
        for stamp, _ in new:
            pilots.register(conn, stamp=stamp, vo=own, queue=None, submitted_by=call.peer.holder, now=now)
        named = [
            StatusReport(stamp=stamp, status=PilotStatus.SUBMITTED, reference=reference)
            for stamp, reference in new
        ]
        pilots.set_all(conn, named, now=now)
        most = options_for(call.parts.live.current, own).limits.pilots_per_vo
        pilots.require_within_quota(conn, own, most=most)
    return jencode.ok()


def _require_room(conn: Connection, call: DiracCall, new: int) -> None:
    """Raise `NotAllowed` if a user who is no pilots' group would have too many pilots that have not ended."""
    most = bounds.DIRAC_OWN_PILOTS
    peer = call.peer
    if peer.is_host or peer.has(peers.GENERIC_PILOT):
        return
    after = pilots.count_active(conn, peer.holder, most=most) + new
    if after > most:
        raise NotAllowed(
            f"{peer.user} with the group {peer.group} would have {after:,} pilots that have not ended,"
            f" allowed are {most:,} without {peers.GENERIC_PILOT}"
        )


def set_status(
    call: DiracCall,
    reference: Reference,
    status: str,
    destination: str | None = None,
    reason: str | None = None,
    site: str | None = None,
    queue: str | None = None,
) -> Result:
    """Store the status of a pilot, and the queue that it was submitted to.

    Of no effect on one that is not registered, or has ended.
    """
    wanted = _OLD_STATUSES.get(status, status)
    if wanted not in set(PilotStatus):
        listed = ", ".join(PilotStatus)
        message = f"{status[:80]!r} is no status of a pilot: {listed} are allowed"
        raise InvalidRequest([Problem(path="status", message=message)])
    with database.writing(call.parts.engine) as conn:
        stamps = [each.stamp for each in _find(conn, call, [reference]) if _is_visible(call, each)]
        changed = [
            StatusReport(stamp=stamp, status=PilotStatus(wanted), reason=(reason or "")[: bounds.NAME])
            for stamp in stamps
        ]
        if site and destination and queue:
            address = QueueAddress(site=site, ce=destination, queue=queue)
            if call.parts.live.current.knows(address):
                pilots.assign_queues(conn, dict.fromkeys(stamps, address))
        pilots.set_all(conn, changed, now=call.parts.clock())
    return jencode.ok()


def get_info(call: DiracCall, references: ReadReferences) -> Result:
    """Pilots with their jobs, by reference."""
    with database.reading(call.parts.engine) as conn:
        return _describe(conn, call, _find(conn, call, references))


def _describe(conn: Connection, call: DiracCall, found: Sequence[Pilot]) -> Result:
    visible = [each for each in found if _is_visible(call, each) and each.reference]
    if not visible:
        return jencode.error("none of these is known", jencode.NO_PILOT)
    return jencode.ok(_summarise(conn, visible))


def _summarise(conn: Connection, found: Sequence[Pilot]) -> dict[str, object]:
    taken = attempts.list_jobs_of_pilots(conn, {each.stamp for each in found})
    return {str(each.reference): _summarise_one(each, taken.get(each.stamp, ())[-_JOBS:]) for each in found}


def _summarise_one(pilot: Pilot, jobs: Sequence[int]) -> dict[str, object]:
    return {
        "PilotJobReference": pilot.reference,
        "PilotID": pilot.stamp,
        "PilotStamp": pilot.stamp,
        "VO": pilot.vo,
        "GridType": "DIRAC",
        "GridSite": pilot.site,
        "DestinationSite": pilot.ce,
        "Queue": pilot.queue,
        "Status": str(pilot.status),
        "StatusReason": pilot.status_reason.strip(),
        "BenchMark": 0.0,
        "AccountingSent": "False",
        "SubmissionTime": pilot.created_at,
        "LastUpdateTime": pilot.updated_at,
        **({"Jobs": list(jobs)} if jobs else {}),
    }


def select_pilots(call: DiracCall, conditions: dict[str, Any]) -> Result:
    """The references of pilots, those first whose last change is the longest ago."""
    which = _read_filter(call, conditions)
    with database.reading(call.parts.engine) as conn:
        found = search.list_stale(conn, which, limit=bounds.DIRAC_PILOTS_READ)
    return jencode.ok([str(each.reference) for each in found])


def count_pilots(call: DiracCall, conditions: dict[str, Any]) -> Result:
    """The number of pilots; SiteDirectors without a database use it."""
    which = _read_filter(call, conditions)
    with database.reading(call.parts.engine) as conn:
        counts = search.count_pilots(conn, ["vo"], which)
    return jencode.ok(sum(each.count for each in counts.values()))


def _read_filter(call: DiracCall, conditions: Mapping[str, Any]) -> PilotFilter:
    """Conditions of a client, on the pilots that it sees."""
    vos, statuses = call.peer.vos, None
    places: dict[str, str] = {}
    for name, value in conditions.items():
        given = value if isinstance(value, list) else [value]
        if name == "Status":
            known = {_OLD_STATUSES.get(str(each), str(each)) for each in given} & set(PilotStatus)
            statuses = frozenset(map(PilotStatus, known))
        elif name == "VO":
            vos &= frozenset(fold(str(each)) for each in given)
        elif name in _PLACES and isinstance(value, str) and NAME.fullmatch(value):
            places[name] = value
        elif name != _GRID_TYPE:
            allowed = ", ".join(sorted({*_PLACES, _GRID_TYPE, "Status", "VO"}))
            message = f"{name[:80]!r} is no condition with a value that is allowed here: {allowed}"
            raise InvalidRequest([Problem(path="conditions", message=message)])
    return PilotFilter(
        visible=(OwnershipFilter(vos=vos),),
        statuses=statuses,
        submitted_by=None if _manages(call) else call.peer.holder,
        has_reference=True,
        site=places.get("GridSite"),
        ce=places.get("DestinationSite"),
        queue=places.get("Queue"),
    )


def get_pilots(call: DiracCall, job_id: JobId) -> Result:
    """The pilots that had a job; their other jobs only of those pilots that the peer sees."""
    with database.reading(call.parts.engine) as conn:
        call.get_job(conn, job_id)
        stamps = {each.stamp for each in attempts.list_newest(conn, job_id) if each.stamp}
        found = pilots.read_pilots(conn, stamps)
        # Who sees the job sees which pilots had it.
        known = [each for each in found if each.reference]
        if not known:
            return jencode.error(f"Failed to get pilot for Job {job_id}: none is known")
        seen = _summarise(conn, [each for each in known if _is_visible(call, each)])
        return jencode.ok({str(each.reference): _summarise_one(each, [job_id]) for each in known} | seen)


METHODS: Final[Mapping[str, Method]] = {
    "addPilotReferences": add_references,
    "setPilotStatus": set_status,
    "selectPilots": select_pilots,
    "countPilots": count_pilots,
    "getPilotInfo": get_info,
    "getPilots": get_pilots,
}
