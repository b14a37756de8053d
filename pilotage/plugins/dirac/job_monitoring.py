"""WorkloadManagement/JobMonitoring: jobs as DIRAC's clients read them.

Jobs that the peer may not see are left out, as if they did not exist.
"""

from collections.abc import Iterable, Mapping
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any, Final

from pydantic import ValidationError
from sqlalchemy import Connection

from cs_config.options import bounds
from cs_config.options.operations import options_for
from pilotage.plugins.dirac import dialect, jencode, peers
from pilotage.plugins.dirac.jencode import Result
from pilotage.plugins.dirac.job_state_update import MEASURED, OUTPUT
from pilotage.plugins.dirac.peers import DiracCall, JobId, JobIds, Method, list_problems
from pilotage.service.auth import visibility
from pilotage.service.models.jobs import JobFilter
from requirements.errors import InvalidRequest, Problem
from requirements.job_fields import OWNER_GROUP
from requirements.states import JobStatus
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
#: Filters of ours that take several values.
_SEVERAL: Final = frozenset({"site", "status", "vo"})
#: What a job without a site has in DIRAC, and one without a status of its application.
_ANY, _UNKNOWN = "ANY", "Unknown"
_MOMENT: Final = "%Y-%m-%d %H:%M:%S"


def summarise_job(job: Job) -> dict[str, object]:
    """A job with the names of DIRAC's JobDB."""
    return {
        "JobID": job.job_id,
        "JobType": job.job_type or dialect.DEFAULT_TYPE,
        "JobGroup": job.job_group,
        "Site": job.site or _ANY,
        "JobName": job.job_name or _UNKNOWN,
        "Owner": job.owner,
        "OwnerGroup": job.owner_group,
        "VO": job.vo,
        "SubmissionTime": job.submitted_at,
        "RescheduleTime": None,
        "LastUpdateTime": job.updated_at,
        "StartExecTime": job.started_at,
        "HeartBeatTime": job.updated_at,
        "EndExecTime": job.ended_at,
        "Status": str(job.status),
        "MinorStatus": job.minor_status or _UNKNOWN,
        "ApplicationStatus": job.application_status or _UNKNOWN,
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
                each.minor_status or _UNKNOWN,
                each.application_status or _UNKNOWN,
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
    wanted = _read_filter(attributes or {})
    after_date = read_date(since)
    found: list[Job] = []
    caller, now = call.peer.caller, call.parts.clock()
    if caller is not None:
        found += _list(call, visibility.visible_jobs(caller, wanted, now=now))
    if call.peer.has(peers.JOB_SHARING) and wanted.get(OWNER_GROUP) in (None, [call.peer.group]):
        shared = wanted.model_copy(update={"owner_group": call.peer.group})
        found += _list(call, visibility.visible_jobs(call.peer.admin_of(call.peer.vo), shared, now=now))
    if call.peer.has(peers.GENERIC_PILOT):
        found += _list_of_pilots(call, wanted, now)
    chosen = {job.job_id for job in found if after_date is None or job.updated_at >= after_date}
    return jencode.ok([str(each) for each in sorted(chosen)])


def _list_of_pilots(call: DiracCall, wanted: JobFilter, now: datetime) -> Iterable[Job]:
    """Those that a pilot sees, such as the running ones of which a PushJobAgent looks for its own."""
    anybody = replace(call.peer.admin_of(""), vos=call.peer.vos)
    found = _list(call, visibility.visible_jobs(anybody, wanted, now=now))
    with database.reading(call.parts.engine) as conn:
        return call.select_visible(conn, found).values()


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


def _read_filter(attributes: Mapping[str, Any]) -> JobFilter:
    if unknown := sorted(set(attributes) - set(COLUMNS)):
        listed = ", ".join(COLUMNS)
        message = f"unknown: {', '.join(unknown)[:200]}; {listed} are allowed"
        raise InvalidRequest([Problem(path="attributes", message=message)])
    values: dict[str, object] = {}
    for name, value in attributes.items():
        ours = COLUMNS[name]
        given = value if isinstance(value, list) else [value]
        if ours in _SEVERAL:
            values[ours] = given
        elif len(given) == 1:
            values[ours] = given[0]
        else:
            raise InvalidRequest([Problem(path=name, message="one value is allowed")])
    if wrong := sorted({str(each) for each in _as_list(values.get("status"))} - set(map(str, JobStatus))):
        raise InvalidRequest([Problem(path="Status", message=f"{wrong[0]!r:.80} is no status of a job")])
    try:
        return JobFilter.model_validate(values)
    except ValidationError as fault:
        raise list_problems("attributes", fault) from None


def _as_list(value: object) -> list[object]:
    return value if isinstance(value, list) else []


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
