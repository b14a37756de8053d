"""Changes of many jobs: one table of verbs, and the requests that each takes.

A verb is a route, a command, and a method of both clients, by one name.
"""

import uuid
from collections import Counter, deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from pilotage.client import waiting
from pilotage.client.api import ApiError, Json, ServiceAway, ServiceClient, require_known
from requirements.errors import format_ids
from requirements.states import CHANGEABLE, HELD_BY_USER


@dataclass(frozen=True, slots=True, kw_only=True)
class JobVerb:
    """A change of jobs, by ids or by filters: a route, a command and a method of `Client`, by one name."""

    name: str
    summary: str  #: for the help of the command and the documentation of the method
    done: str  #: what the jobs are then
    makes_jobs: bool = False  #: the ids in the answer are those of new jobs
    minor: str | None = None  #: the minor status of jobs that can be changed; None: any
    sets: str = ""  #: what its values are for, if it takes some


KILL = JobVerb(
    name="kill", summary="Kill jobs, by id or by filters; running payloads are stopped.", done="Killed"
)
DELETE = JobVerb(
    name="delete",
    summary="Delete jobs, by id or by filters; those that have not ended are killed.",
    done="Deleted",
)
RESCHEDULE = JobVerb(
    name="reschedule",
    summary="Send jobs through the optimizers again, by id or by filters.",
    done="Rescheduled",
)
RESET = JobVerb(
    name="reset",
    summary="Reschedule jobs, by id or by filters, however often that was done before.",
    done="Reset",
)
HOLD = JobVerb(
    name="hold",
    summary="Keep jobs from pilots, by id or by filters, until they are released.",
    done="Held",
)
RELEASE = JobVerb(
    name="release",
    summary="Let held jobs, by id or by filters, wait for pilots again.",
    done="Released",
    minor=HELD_BY_USER,
)
RESUBMIT = JobVerb(
    name="resubmit",
    summary="Submit copies of jobs, by id or by filters, with their input sandboxes.",
    done="Resubmitted",
    makes_jobs=True,
    sets="Another value in the copies",
)
EDIT = JobVerb(
    name="edit",
    summary="Change values in the descriptions of jobs that no pilot has, by id or by filters.",
    done="Edited",
    sets="A value in the descriptions",
)
JOB_VERBS: Final = (KILL, DELETE, RESCHEDULE, RESET, HOLD, RELEASE, EDIT, RESUBMIT)

#: Jobs that one request names.
_IDS: Final = 1000
#: Statuses of services that copy one job at a time: of 1.0.
_NOT_THERE: Final = frozenset({404, 405})

#: The answer to one request for a change.
Send = Callable[[Json], Json]


def change_all(
    service: ServiceClient,
    verb: JobVerb,
    filters: Mapping[str, str],
    ids: Sequence[int] = (),
    *,
    warn: Callable[[str], object] = lambda _: None,
    values: Mapping[str, object] | None = None,
    dry_run: bool = False,
) -> Json:
    """Change the jobs with these ids, or else all that pass the filters, in as many requests as it takes.

    The answer has the changed ones, or the new ones, as `job_ids`, and others that were named as `refused`,
    with reasons; `warn` gets each warning about new ones, or ones with other values. `values`: of
    descriptions, by keyword or by name in the Requirements; `dry_run`, with values: nothing is changed, and
    the answer has the jobs that would be. If a later request fails, its error has those of the earlier ones
    in its message and `details`; Ctrl-C has them in a note.
    """
    if not verb.makes_jobs:
        given: Json = {"set": dict(values)} if values else {}
        given |= {"dry_run": True} if dry_run else {}
        named = [{"ids": ",".join(map(str, batch))} for batch in _split(ids, _IDS)] or [dict(filters)]
        bodies = [{**each, **given} for each in named]
        done = _send_all(verb, bodies, ids, _IDS, lambda body: service.change_jobs(verb.name, body))
    else:
        # By ids: copies pass the filters, too, so that a request with them could not be repeated.
        copied = ids or sorted(waiting.find_ids(service, filters))
        done = _resubmit(service, verb, copied, values, dry_run=dry_run)
    for warning in done["warnings"]:
        warn(warning)
    return done


def foresee(
    service: ServiceClient, verb: JobVerb, filters: Mapping[str, str], ids: Sequence[int] = ()
) -> list[Json]:
    """Numbers of the jobs that would be changed, as `count` by `status` and `owner`; nothing is changed."""
    named = [{"ids": ",".join(map(str, batch))} for batch in _split(ids, _IDS)] or [dict(filters)]
    by = ("status", "owner") if verb.minor is None else ("status", "owner", "minor_status")
    counts: Counter[tuple[str, str]] = Counter()
    for each in named:
        for row in service.summary(by=by, filters=each):
            if row["status"] in CHANGEABLE[verb.name] and verb.minor in (None, row.get("minor_status")):
                counts[row["status"], row["owner"]] += row["count"]
    return [{"status": status, "owner": owner, "count": n} for (status, owner), n in counts.most_common()]


def _resubmit(
    service: ServiceClient,
    verb: JobVerb,
    ids: Sequence[int],
    values: Mapping[str, object] | None,
    *,
    dry_run: bool,
) -> Json:
    key = str(uuid.uuid4())

    def send(body: Json) -> Json:
        return service.resubmit_jobs(body["ids"], idempotency_key=key, values=values, dry_run=dry_run)

    def send_one(body: Json) -> Json:
        return service.resubmit(body["ids"][0], idempotency_key=key)

    try:
        return _send_all(verb, [{"ids": batch} for batch in _split(ids, _IDS)], ids, _IDS, send)
    except ApiError as error:
        # After the first copies another release answers: of their jobs there would be two.
        if values or error.status not in _NOT_THERE or error.details.get("job_ids"):
            raise
        return _send_all(verb, [{"ids": [job_id]} for job_id in ids], ids, 1, send_one)


def _split(ids: Sequence[int], size: int) -> list[Sequence[int]]:
    return [ids[start : start + size] for start in range(0, len(ids), size)]


def _send_all(verb: JobVerb, bodies: Sequence[Json], ids: Sequence[int], size: int, send: Send) -> Json:
    """Send the requests, each for `size` of the ids, and for what is behind the pages of their answers."""
    todo = deque(bodies)
    done: Json = {"job_ids": [], "refused": [], "warnings": []}
    unknown: list[Json] | None = None
    while todo:
        left = ids[(len(bodies) - len(todo)) * size :]
        try:
            answer = send(todo[0])
        except (ServiceAway, ApiError) as error:
            raise _describe_progress(verb, error, done, left, size) from error
        except KeyboardInterrupt as error:
            error.add_note(_name_changed(verb, done, left, uncertain=size))
            raise
        body = todo.popleft()
        for name, found in done.items():
            found += answer.get(name, ())
        unknown = unknown or answer.get("unknown")
        if (following := answer.get("next")) is not None:
            todo.appendleft({**body, "after": following})
    require_known({**done, "unknown": unknown})  # last: jobs with the other values are changed
    return done


def _describe_progress(
    verb: JobVerb, error: ServiceAway | ApiError, done: Json, ids: Sequence[int], size: int
) -> ServiceAway | ApiError:
    """The error of a request, with what was changed before; `ids`: those of this request and behind it."""
    if not (done["job_ids"] or done["refused"] or ids[size:]):
        return error
    first = size if isinstance(error, ServiceAway) or error.status >= 500 else 0
    message = f"{error}; {_name_changed(verb, done, ids, uncertain=first)}"
    progress = {"job_ids": done["job_ids"], "refused": done["refused"]}
    details = {
        **error.details,
        **progress,
        "uncertain": list(ids[:first]),
        "not_tried": list(ids[first:]),
    }
    if isinstance(error, ApiError):
        return ApiError(
            message, status=error.status, code=error.code, details=details, retry_after=error.retry_after
        )
    away = ServiceAway(message)
    away.details = details
    return away


def _name_changed(verb: JobVerb, done: Json, ids: Sequence[int], *, uncertain: int) -> str:
    """What was changed before something went wrong; of the `ids` left the first may be changed."""
    parts = {
        "new jobs" if verb.makes_jobs else "changed": done["job_ids"],
        "refused": [each["job_id"] for each in done["refused"]],
        "may be copied or not" if verb.makes_jobs else "may be changed or not": ids[:uncertain],
        "not tried": ids[uncertain:],
    }
    named = [f"{what}: {format_ids(some)}" for what, some in parts.items() if some]
    return "; ".join([*named, *([] if ids else ["others that pass the filters may be as they were"])])
