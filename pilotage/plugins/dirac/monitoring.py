"""What DIRAC's portal and dashboards read: Monitoring/WebApp, and records of the type WMSHistory.

The Job Monitor and the Site Summary of the portal call Monitoring/WebApp. Jobs that the peer may not see are
neither listed nor counted: a member of a group with JobSharing sees the jobs of that group, others those of
`peers.Peer.caller`. Pilots and transformations are not answered here.

Source: DIRAC 9.1, `MonitoringSystem/Service/WebAppHandler.py`, `JobDB.getSiteSummaryWeb`,
`MonitoringSystem/Client/Types/WMSHistory.py`, `StatesAccountingAgent`.
"""

from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any, Final

from sqlalchemy import Connection

from cs_config.options import bounds
from cs_config.tree.configuration import Configuration
from pilotage.plugins.dirac import jencode, peers
from pilotage.plugins.dirac.jencode import Result
from pilotage.plugins.dirac.job_monitoring import (
    ABSENT,
    COLUMNS,
    CONDITIONS,
    narrow,
    read_date,
    summarise_job,
)
from pilotage.plugins.dirac.peers import DiracCall, Method
from pilotage.service.auth import visibility
from pilotage.service.models.jobs import JobFilter
from requirements.errors import require_names
from requirements.job_fields import JOB_ID, OWNER_GROUP, STATUS, UPDATED_AT
from requirements.states import JobStatus
from requirements.values import fold
from taskqueue.db import database
from taskqueue.jobs import search
from taskqueue.jobs.search import JobSelector
from taskqueue.sites import closures

_SORTED: Final[Mapping[str, str]] = {
    **{name: ours for name, ours in COLUMNS.items() if ours in search.SORT_COLUMNS},
    "EndExecTime": "ended_at",
    "HeartBeatTime": "updated_at",
    "JobID": "job_id",
    "LastSignOfLife": "updated_at",
    "LastUpdateTime": "updated_at",
    "StartExecTime": "started_at",
    "SubmissionTime": "submitted_at",
    "UserPriority": "priority",
}
#: Statuses in the order of DIRAC's columns; those that count for the efficiency of a site.
_STATES: Final = (
    *("Submitting", "Received", "Checking", "Scouting", "Staging", "Waiting", "Matched", "Rescheduled"),
    *("Running", "Stalled", "Completing", "Done", "Completed", "Failed", "Deleted", "Killed"),
)
_ENDS: Final = ("Done", "Completed", "Failed", "Killed")
#: Least parts of good ends, in percent, with DIRAC's word for such a site.
_GRADES: Final = ((95, "Good"), (80, "Fair"), (60, "Poor"))
_DAY: Final = timedelta(days=1)
#: Tiers of sites without one, in the Site Summary and in records.
_TIER: Final = 2
_NOT_PLEDGED: Final = "4"
#: Most jobs of a page, and most that are counted for each status.
_PAGE: Final = 1_000
_COUNTED: Final = 100_000


_NO_JOB: Final = JobSelector().where(JOB_ID, ())

#: Conditions by DIRAC's names: a value or a list of them.
Selection = dict[str, Any]


def _select(call: DiracCall, given: Selection | None) -> JobSelector:
    """The visible jobs of a selection."""
    wanted = {name: value for name, value in (given or {}).items() if value not in (None, "", [])}
    since = read_date(wanted.pop("FromDate", None) or wanted.get("LastUpdate"))
    before = read_date(wanted.pop("ToDate", None))
    wanted.pop("LastUpdate", None)
    if wanted:
        require_names("selection", list(wanted), CONDITIONS)
    visible = _find_visible(call)
    if visible is None:
        return _NO_JOB
    return narrow(visible, wanted).between(UPDATED_AT, since, before)


def _find_visible(call: DiracCall) -> JobSelector | None:
    """All jobs that the peer may see; None: it may see none."""
    peer, everything, now = call.peer, JobFilter(), call.parts.clock()
    if peer.has(peers.JOB_SHARING) and not peer.has(peers.JOB_ADMINISTRATOR):
        of_vo = visibility.visible_jobs(peer.admin_of(peer.vo), everything, now=now)
        return of_vo.where(OWNER_GROUP, {peer.group})
    if peer.caller is None:
        return None
    return visibility.visible_jobs(peer.caller, everything, now=now)


def get_job_page(
    call: DiracCall,
    selection: Selection,
    order: list[tuple[str, str]],
    start: int,
    most: int,
    select_jobs: bool = True,  # noqa: FBT001, FBT002  (DIRAC's)
) -> Result:
    """A page of jobs, as rows below `ParameterNames`, with the numbers of all by status."""
    which = _select(call, selection)
    by, direction = order[0] if order else ("JobID", "DESC")
    require_names("order", [by], _SORTED)
    limit, skip = min(max(most, 1), _PAGE), max(start, 0)
    descending = direction.upper() != "ASC"
    with database.reading(call.parts.engine) as conn:
        counts = search.count_by_status(conn, which, most=_COUNTED)
        total = search.sum_counts(counts).jobs
        if select_jobs and total and skip >= total:
            return jencode.error("Item number out of range")
        page = (
            search.read_sorted(conn, which, by=_SORTED[by], descending=descending, limit=limit, skip=skip)
            if select_jobs and total
            else None
        )
    value: dict[str, object] = {"TotalRecords": total}
    if total:
        value["Extras"] = {str(status): count.jobs for status, count in counts.items()}
    if page is not None and page.jobs:
        rows = [{**summarise_job(job), "LastSignOfLife": job.updated_at} for job in page.jobs]
        value |= {"ParameterNames": list(rows[0]), "Records": [list(row.values()) for row in rows]}
    return jencode.ok(value)


def _count(call: DiracCall, by: Sequence[str], which: JobSelector) -> Counter[tuple[str | None, ...]]:
    """Numbers of jobs by attributes whose values the configuration bounds."""
    require_names("attributes", by, COLUMNS)
    with database.reading(call.parts.engine) as conn:
        return search.count_by_columns(conn, [COLUMNS[name] for name in by], which)


def _count_largest(
    call: DiracCall, by: Sequence[str], which: JobSelector
) -> Mapping[tuple[str | None, ...], int]:
    """Numbers of jobs by any attributes; those of further groups are added up as `and N more`."""
    require_names("attributes", by, COLUMNS)
    with database.reading(call.parts.engine) as conn:
        columns = [COLUMNS[name] for name in by]
        found = search.count_largest(conn, columns, which, most=bounds.DIRAC_VALUES)
    if not found.more_groups:
        return found.jobs
    return {**found.jobs, (f"and {found.more_groups} more",) * len(by): found.more_jobs}


def get_job_stats(call: DiracCall, attribute: str, selection: Selection) -> Result:
    """Numbers of jobs by the values of one attribute."""
    counts = _count_largest(call, [attribute], _select(call, selection))
    numbers = Counter[str]()
    for (value,), jobs in counts.items():
        numbers[value or ABSENT.get(attribute, "")] += jobs
    return jencode.ok(dict(numbers))


def get_jobs_counters(
    call: DiracCall, attributes: list[str], selection: Selection | None = None, since: Any = None
) -> Result:
    """Numbers of jobs by the values of some attributes."""
    which = _select(call, selection)
    counts = _count_largest(call, attributes, which.between(UPDATED_AT, read_date(since), None))
    numbers = Counter[tuple[str, ...]]()
    for values, jobs in counts.items():
        shown = (value or ABSENT.get(name, "") for name, value in zip(attributes, values, strict=True))
        numbers[tuple(shown)] += jobs
    return jencode.ok([[dict(zip(attributes, each, strict=True)), jobs] for each, jobs in numbers.items()])


def _list_values(attribute: str) -> Method:
    """The method that lists the values of an attribute."""

    def list_values(
        call: DiracCall, selection: Selection | None = None, older: Any = None, newer: Any = None
    ) -> Result:
        which = _select(call, {**(selection or {}), "FromDate": newer, "ToDate": older})
        require_names("attributes", [attribute], COLUMNS)
        with database.reading(call.parts.engine) as conn:
            found = search.count_largest(conn, [COLUMNS[attribute]], which, most=bounds.DIRAC_VALUES)
        more = [f"and {found.more_groups} more"] if found.more_groups else []
        values = {value or ABSENT.get(attribute) for (value,) in found.jobs}
        return jencode.ok(sorted(filter(None, values)) + more)

    return list_values


def _list_sites(call: DiracCall, since: datetime | None) -> list[dict[str, Any]]:
    """A row for each site that has jobs, with the columns of a Site Summary."""
    visible, config, now = _find_visible(call) or _NO_JOB, call.parts.live.current, call.parts.clock()
    ended = frozenset(map(JobStatus, _ENDS))
    numbers: defaultdict[str, Counter[str]] = defaultdict(Counter)
    for statuses, from_ in ((frozenset(JobStatus) - ended, since), (ended, now - _DAY)):
        which = visible.where(STATUS, statuses).between(UPDATED_AT, from_, None)
        for (site, status), count in _count(call, ["Site", "Status"], which).items():
            numbers[str(site)][str(status)] += count
    with database.reading(call.parts.engine) as conn:
        banned = closures.list_closed(conn, now=now)
    rows = []
    for site, jobs in numbers.items():
        grid, _, country = site.split(".") if site.count(".") == 2 else ("Unknown",) * 3
        mask = "Banned" if fold(site) in banned else "Active" if site in config.sites else "NoMask"
        tier = read_tier(config, site)
        rows.append(
            {
                "Site": site,
                "GridType": grid,
                "Country": country,
                "Tier": _TIER if tier is None else tier,
                "MaskStatus": mask,
                **{state: jobs[state] for state in _STATES},
                **_grade(jobs),
            }
        )
    return rows


def get_site_summary(
    call: DiracCall, selection: Selection, order: list[tuple[str, str]], start: int, most: int
) -> Result:
    """Numbers of jobs by site and status: ended ones of the last day, others of all time."""
    wanted = dict(selection)
    rows = _list_sites(call, read_date(wanted.pop("LastUpdateTime", None)))
    names = ("Site", "GridType", "Country", "Tier", "MaskStatus", *_STATES, "Efficiency", "Status")
    if wanted:
        require_names("selection", list(wanted), names)
    for name, given in wanted.items():
        values = given if isinstance(given, list) else [given]
        rows = [row for row in rows if row[name] in values]
    by, direction = order[0] if order else ("Site", "ASC")
    require_names("order", [by], names)
    rows.sort(key=lambda row: (row[by] is None, row[by]), reverse=direction.upper() == "DESC")
    countries: defaultdict[str, Counter[str]] = defaultdict(Counter)
    for row in rows:
        countries[str(row["Country"])].update({state: row[state] for state in _STATES})
    shown = rows[max(start, 0) :][: most or None]
    return jencode.ok(
        {
            "ParameterNames": list(names),
            "Records": [[row[name] for name in names] for row in shown],
            "TotalRecords": len(rows),
            "Extras": {country: dict(jobs) for country, jobs in countries.items()},
        }
    )


def _grade(jobs: Mapping[str, int]) -> Mapping[str, Any]:
    ends = sum(jobs[state] for state in _ENDS)
    percent = 100 * (jobs["Done"] + jobs["Completed"]) / ends if ends else 0.0
    grade = next((word for least, word in _GRADES if percent > least), "Bad" if ends else "Idle")
    return {"Efficiency": f"{percent:.1f}", "Status": grade}


def get_site_selectors(call: DiracCall) -> Result:
    """What a Site Summary may be limited to."""
    sites = sorted(call.parts.live.current.sites)
    return jencode.ok(
        {
            "Status": ["Good", "Fair", "Poor", "Bad", "Idle"],
            "MaskStatus": ["Active", "Banned", "NoMask", "Reduced"],
            "Country": sorted({site.rpartition(".")[2].lower() for site in sites}),
            "Site": sites,
        }
    )


def read_tier(config: Configuration, site: str) -> int | None:
    """The tier of a site in its grid; None: it has none."""
    sites: Any = config.tree.get("Resources", {})
    known = sites.get("Sites", {}).get(site) or {}
    return next((value for name, value in known.items() if fold(name) == "moutierlevel"), None)


#: Texts of a record WMSHistory by the columns that they come from, beside Tier and Type of the site.
_HISTORY: Final[Mapping[str, str]] = {
    "application_status": "ApplicationStatus",
    "job_group": "JobGroup",
    "job_type": "JobSplitType",
    "minor_status": "MinorStatus",
    "owner": "User",
    "owner_group": "UserGroup",
    "site": "Site",
    "status": "Status",
}
HISTORY_KEYS: Final = (*_HISTORY.values(), "Tier", "Type")


#: Keys whose values anybody may choose: those of small groups, beyond the bound, are `(more)`.
_FREE: Final = frozenset({"application_status", "job_group", "job_type", "minor_status", "owner"})


def list_history(conn: Connection, config: Configuration, now: datetime) -> Iterator[dict[str, str | int]]:
    """Records of the type WMSHistory: numbers of all jobs by what DIRAC's dashboards show."""
    timestamp = int(now.timestamp() * 1000)
    for values, jobs, reschedules in _list_bounded(conn):
        found = dict(zip(_HISTORY.values(), map(str, values), strict=True))
        site = found["Site"]
        tier = read_tier(config, site)
        yield {
            **found,
            "ApplicationStatus": found["ApplicationStatus"] or "unset",
            "MinorStatus": found["MinorStatus"] or "unset",
            "Tier": _NOT_PLEDGED if tier is None else str(tier),
            "Type": site.split(".")[0],
            "Jobs": jobs,
            "Reschedules": reschedules,
            "timestamp": timestamp,
        }


def _list_bounded(conn: Connection) -> Iterator[tuple[tuple[str | None, ...], int, int]]:
    """Values, jobs and reschedulings of the largest groups, then of the others without what is free."""
    others: defaultdict[tuple[str | None, ...], Counter[str]] = defaultdict(Counter)
    for number, group in enumerate(search.list_reschedules(conn, list(_HISTORY), JobSelector())):
        if number < bounds.DIRAC_RECORDS:
            yield group
            continue
        values, jobs, reschedules = group
        kept = tuple(
            "(more)" if name in _FREE else value for name, value in zip(_HISTORY, values, strict=True)
        )
        others[kept].update(jobs=jobs, reschedules=reschedules)
    for kept, sums in others.items():
        yield kept, sums["jobs"], sums["reschedules"]


#: Methods that list the values of an attribute, which the portal offers as conditions.
_LISTS: Final[Mapping[str, str]] = {
    "getApplicationStates": "ApplicationStatus",
    "getJobGroups": "JobGroup",
    "getJobTypes": "JobType",
    "getMinorStates": "MinorStatus",
    "getOwnerGroup": "OwnerGroup",
    "getOwners": "Owner",
    "getSites": "Site",
    "getStates": "Status",
}
METHODS: Final[Mapping[str, Callable[..., Any]]] = {
    "getJobPageSummaryWeb": get_job_page,
    "getJobStats": get_job_stats,
    "getJobsCounters": get_jobs_counters,
    "getSiteSummaryWeb": get_site_summary,
    "getSiteSummarySelectors": get_site_selectors,
    **{method: _list_values(attribute) for method, attribute in _LISTS.items()},
}
