"""WorkloadManagement/JobMonitoring: jobs as DIRAC's clients read them.

Jobs that the peer may not see are left out, as if they did not exist.
"""

from collections.abc import Callable, Mapping
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any, Final

from sqlalchemy import Connection

from cs_config.options import bounds
from cs_config.options.operations import options_for
from pilotage.plugins.dirac import dialect, jencode, peers
from pilotage.plugins.dirac.jencode import Result
from pilotage.plugins.dirac.job_state_update import MEASURED, OUTPUT
from pilotage.plugins.dirac.peers import DiracCall, JobId, JobIds, Method
from pilotage.service.auth import visibility
from pilotage.service.auth.callers import Caller
from pilotage.service.models import MOST
from pilotage.service.models.jobs import JobFilter
from requirements.errors import InvalidRequest, Problem, require_names
from requirements.states import WITHOUT_PILOT, JobStatus
from requirements.values import fold
from taskqueue.db import database
from taskqueue.jobs import descriptions, log, search
from taskqueue.jobs.jobs import Job
from taskqueue.leases import attempts

#: Most jobs in one list.
_LISTED: Final = 10_000
_PAGE: Final = 1_000
#: DIRAC's names of attributes of jobs, and our columns and filters.
COLUMNS: Final[Mapping[str, str]] = {
    "ApplicationStatus": "application_status",
    "JobGroup": "job_group",
    "JobName": "job_name",
    "JobType": "job_type",
    "MinorStatus": "minor_status",
    "Owner": "owner",
    "OwnerGroup": "owner_group",
    "Site": "site",
    "Status": "status",
    "VO": "vo",
}
#: What DIRAC's clients read, and select by, where a job has no value of an attribute.
ABSENT: Final[Mapping[str, str]] = {
    "ApplicationStatus": "Unknown",
    "JobName": "Unknown",
    "JobType": dialect.DEFAULT_TYPE,
    "MinorStatus": "Unknown",
    "Site": "ANY",
}
_NOT_STARTED: Final = WITHOUT_PILOT | {JobStatus.MATCHED}
_MOMENT: Final = "%Y-%m-%d %H:%M:%S"


def summarise_job(job: Job) -> dict[str, object]:
    """A job with the names of DIRAC's JobDB."""
    return {
        "JobID": job.job_id,
        "JobType": job.job_type or ABSENT["JobType"],
        "JobGroup": job.job_group,
        "Site": job.site or ABSENT["Site"],
        "JobName": job.job_name or ABSENT["JobName"],
        "Owner": job.owner,
        "OwnerGroup": job.owner_group,
        "VO": job.vo,
        "SubmissionTime": job.submitted_at,
        "RescheduleTime": None,
        "LastUpdateTime": job.updated_at,
        # After a reschedule that of the attempt before is not shown.
        "StartExecTime": None if job.status in _NOT_STARTED else job.started_at,
        "HeartBeatTime": job.updated_at,
        "EndExecTime": job.ended_at,
        "Status": str(job.status),
        "MinorStatus": job.minor_status or ABSENT["MinorStatus"],
        "ApplicationStatus": job.application_status or ABSENT["ApplicationStatus"],
        "UserPriority": int(job.priority),
        "RescheduleCounter": job.reschedules,
        "VerifiedFlag": "True",
        "AccountedFlag": "False",
    }


def _read(call: DiracCall, job_ids: JobIds) -> dict[int, dict[str, object]]:
    with database.reading(call.parts.engine) as conn:
        return {job_id: summarise_job(job) for job_id, job in call.find_jobs(conn, job_ids).items()}


def _select(*names: str) -> Method:
    """The method that reads these attributes of jobs."""

    def select(call: DiracCall, job_ids: JobIds) -> Result:
        found = _read(call, job_ids)
        return jencode.ok({job_id: {name: job[name] for name in names} for job_id, job in found.items()})

    return select


def get_jobs_summary(call: DiracCall, job_ids: JobIds) -> Result:
    """All their attributes."""
    return jencode.ok(_read(call, job_ids))


def get_job_attributes(call: DiracCall, job_id: JobId, names: list[str] | None = None) -> Result:
    """Attributes of one job; empty if it does not exist."""
    job = _read(call, [job_id]).get(job_id, {})
    if unknown := sorted(set(names or ()) - set(job)) if job else []:
        raise InvalidRequest([Problem(path="attributes", message=f"unknown: {', '.join(unknown)[:200]}")])
    return jencode.ok({name: job[name] for name in names} if names and job else job)


def get_job_summary(call: DiracCall, job_id: JobId) -> Result:
    """All attributes of one job."""
    return get_job_attributes(call, job_id)


def get_job_attribute(call: DiracCall, job_id: JobId, name: str) -> Result:
    """One attribute of one job."""
    return jencode.ok(_read(call, [job_id]).get(job_id, {}).get(name))


def _parameters(call: DiracCall, job_ids: JobIds, name: str | None) -> dict[int, dict[str, str]]:
    with database.reading(call.parts.engine) as conn:
        seen = call.find_jobs(conn, job_ids)
        if name in (None, OUTPUT):
            _require_most(len(seen), bounds.DIRAC_JOBS_READ, "jobs")
        sizes = descriptions.read_parameter_sizes(conn, seen).values()
        _require_most(
            sum(sum(each.values()) for each in sizes), bounds.DIRAC_READ, "characters of parameters"
        )
        stored = descriptions.read_parameters(conn, seen)
        found = {job_id: dict(stored.get(job_id, {})) for job_id in seen}
        for job_id in seen if name in (None, OUTPUT) else ():
            latest = attempts.get_latest(conn, job_id)
            if latest is not None and latest.output_tail:
                found[job_id][OUTPUT] = latest.output_tail
    if name is None:
        return found
    return {job_id: {name: each[name]} if name in each else {} for job_id, each in found.items()}


def _require_most(seen: int, most: int, what: str) -> None:
    if seen > most:
        message = f"{seen:,} {what} are too many, allowed in one call are {most:,}"
        raise InvalidRequest([Problem(path="job_ids", message=message)])


def get_job_parameter(call: DiracCall, job_id: JobId, name: str) -> Result:
    """One parameter of a job; empty if it is not set."""
    return jencode.ok(_parameters(call, [job_id], name).get(job_id, {}))


def get_job_parameters(call: DiracCall, job_ids: JobIds, name: str | None = None) -> Result:
    """Parameters of jobs; DIRAC's clients pass one name or none."""
    return jencode.ok(_parameters(call, job_ids, name or None))


def get_logging_info(call: DiracCall, job_id: JobId) -> Result:
    """The history of a job."""
    with database.reading(call.parts.engine) as conn:
        call.get_job(conn, job_id)
        entries = log.read_log(conn, job_id)
    return jencode.ok(
        [
            [
                str(each.to_status),
                each.minor_status or ABSENT["MinorStatus"],
                each.application_status or ABSENT["ApplicationStatus"],
                each.at.astimezone(UTC).strftime(_MOMENT),
                each.source,
            ]
            for each in entries
        ]
    )


def get_job_jdl(call: DiracCall, job_id: JobId, original: bool = False) -> Result:  # noqa: ARG001, FBT001, FBT002  (DIRAC's)
    """The description of a job, in DIRAC's dialect."""
    with database.reading(call.parts.engine) as conn:
        job = call.get_job(conn, job_id)
        body = descriptions.read_description(conn, job_id).body
    defaults = options_for(call.parts.live.current, job.vo).job_description.list_defaults(body)
    return jencode.ok(dialect.write_jdl({**defaults, **body}, job))


def get_input_data(call: DiracCall, job_id: JobId | JobIds) -> Result:
    """The names of the input files of a job; of a list of jobs by id, also of those that do not exist."""
    if not isinstance(job_id, list):
        with database.reading(call.parts.engine) as conn:
            call.get_job(conn, job_id)
            return jencode.ok(_read_input_data(conn, job_id))
    _require_most(len(job_id), bounds.DIRAC_JOBS_READ, "jobs")
    found: dict[str, list[str]] = {str(each): [] for each in job_id}
    characters = 0
    with database.reading(call.parts.engine) as conn:
        for each in call.find_jobs(conn, job_id):
            found[str(each)] = names = _read_input_data(conn, each)
            characters += sum(map(len, names))
            _require_most(characters, bounds.DIRAC_READ, "characters of names")
    return jencode.ok(found)


def _read_input_data(conn: Connection, job_id: int) -> list[str]:
    names = descriptions.read_description(conn, job_id).body.get("InputData", [])
    return list(map(str, names)) if isinstance(names, list) else []


def get_heartbeat_data(call: DiracCall, job_id: JobId) -> Result:
    """The numbers of the latest heartbeat, each with its name and time; earlier ones are not stored."""
    with database.reading(call.parts.engine) as conn:
        call.get_job(conn, job_id)
        latest = attempts.get_latest(conn, job_id)
        stored = descriptions.read_parameters(conn, [job_id]).get(job_id, {})
    if latest is None or latest.heartbeat_at is None:
        return jencode.ok([])
    at = latest.heartbeat_at.astimezone(UTC).strftime(_MOMENT)
    return jencode.ok([(name, stored[name], at) for name in sorted(MEASURED & stored.keys())])


def get_jobs(call: DiracCall, attributes: dict[str, Any] | None = None, since: Any = None) -> Result:
    """The ids of the newest jobs with these attributes that changed since a date, as texts."""
    if attributes:
        require_names("attributes", list(attributes), CONDITIONS)
    after_date = read_date(since)
    peer, found = call.peer, list[Job]()

    def list_visible(caller: Caller, **more: str) -> list[Job]:
        visible = visibility.visible_jobs(caller, JobFilter(), now=call.parts.clock())
        return _list(call, narrow(narrow(visible, attributes), more))

    if peer.caller is not None:
        found += list_visible(peer.caller)
    if peer.has(peers.JOB_SHARING):
        found += list_visible(peer.admin_of(peer.vo), OwnerGroup=peer.group)
    if peer.has(peers.GENERIC_PILOT):
        # What a pilot sees, such as the running ones of which a PushJobAgent looks for its own.
        anybody = replace(peer.admin_of(""), vos=peer.vos)
        of_any = list_visible(anybody)
        with database.reading(call.parts.engine) as conn:
            found += call.select_visible(conn, of_any).values()
    chosen = {job.job_id for job in found if after_date is None or job.updated_at >= after_date}
    return jencode.ok([str(each) for each in sorted(chosen)])


def _list(call: DiracCall, which: search.JobSelector) -> list[Job]:
    found: list[Job] = []
    after: int | None = None
    with database.reading(call.parts.engine) as conn:
        while len(found) < _LISTED:
            page = search.read_page(conn, which, limit=_PAGE, after=after)
            found += page.jobs
            if (after := page.next) is None:
                break
    return found[:_LISTED]


def _read_ids(ids: frozenset[str]) -> frozenset[int]:
    if not all(each.isdecimal() and len(each) < 19 for each in ids):
        message = "allowed are ids of jobs, of at most 18 digits"
        raise InvalidRequest([Problem(path="JobID", message=message)])
    return frozenset(map(int, ids))


#: What reads the values of a condition, where it is not what is stored.
_READERS: Final[Mapping[str, Callable[[frozenset[str]], frozenset[Any]]]] = {
    "JobID": _read_ids,
    "Status": lambda words: frozenset(each for each in JobStatus if each in words),
    "VO": lambda words: frozenset(map(fold, words)),
}
#: Fields by DIRAC's names of conditions.
CONDITIONS: Final[Mapping[str, str]] = {**COLUMNS, "JobID": "job_id"}


def narrow(which: search.JobSelector, conditions: Mapping[str, Any] | None) -> search.JobSelector:
    """Those with one of the values of each condition by a name of `CONDITIONS`."""
    for name, value in (conditions or {}).items():
        words = _read_words(name, value)
        read = _READERS.get(name, frozenset)
        which = which.narrow(CONDITIONS[name], read(words))
    return which


def _read_words(name: str, value: object) -> frozenset[str]:
    """The values of a condition: no more than our own lists take, since each status is counted with them."""
    given = value if isinstance(value, list) else [value]
    if not all(isinstance(each, str | int if name == "JobID" else str) for each in given):
        raise InvalidRequest([Problem(path=name, message="allowed are a text, or a list of texts")])
    words = frozenset(map(str, given))
    if len(words) > MOST:
        raise InvalidRequest([Problem(path=name, message=f"{len(words)} values, allowed are {MOST}")])
    return words | {""} if ABSENT.get(name) in words else words


def read_date(given: Any) -> datetime | None:
    """A date or time of a client, in UTC; None: it names none."""
    if not given:
        return None
    if isinstance(given, datetime):
        return given
    try:
        read = datetime.fromisoformat(str(given))
    except ValueError:
        message = f"{given!r:.80} is no date such as 2026-11-22"
        raise InvalidRequest([Problem(path="date", message=message)]) from None
    return read.replace(tzinfo=UTC) if read.tzinfo is None else read


METHODS: Final[Mapping[str, Method]] = {
    "getJobs": get_jobs,
    "getJobJDL": get_job_jdl,
    "getJobLoggingInfo": get_logging_info,
    "getJobsStates": _select("Status", "MinorStatus", "ApplicationStatus"),
    "getJobsStatus": _select("Status"),
    "getJobsMinorStatus": _select("MinorStatus"),
    "getJobsApplicationStatus": _select("ApplicationStatus"),
    "getJobsSites": _select("Site"),
    "getJobSummary": get_job_summary,
    "getJobsSummary": get_jobs_summary,
    "getJobParameter": get_job_parameter,
    "getJobParameters": get_job_parameters,
    "getJobAttributes": get_job_attributes,
    "getJobAttribute": get_job_attribute,
    "getJobHeartBeatData": get_heartbeat_data,
    "getInputData": get_input_data,
}
