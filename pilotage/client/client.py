"""The client for Python programs and notebooks: jobs, explanations and the configuration of a service.

The service is found as by the commands: by arguments, PILOTAGE_URL and PILOTAGE_TOKEN, or what `pilotage up`
wrote into its home directory. Methods raise `ApiError` where the service rejects a request, `ServiceAway`
where it does not respond, `PilotageError`, their base, for what is wrong before a request is sent, and
`OSError` for a file that cannot be read or written.
"""

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Callable, Coroutine, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from functools import partial
from html import escape
from pathlib import Path
from types import TracebackType
from typing import Any, Concatenate, Generic, ParamSpec, Self, TypeVar

from pilotage.client import changes, connection, outputs, submission, waiting
from pilotage.client.answers import ConfigPreview, CountedJobs, EligibilityReport
from pilotage.client.changes import DELETE, EDIT, HOLD, KILL, RELEASE, RESCHEDULE, RESET, RESUBMIT, JobVerb
from pilotage.client.errors import WrongUsage
from pilotage.client.outputs import FetchedOutputs
from pilotage.client.submission import JobSource
from requirements.job_fields import BRIEF, FILTERS
from requirements.states import FINAL

_P = ParamSpec("_P")
_T = TypeVar("_T")
_Row = TypeVar("_Row")

#: One or several job descriptions: a file, its text (JDL, ClassAd, YAML, JSON), or the keywords of one.
Description = Path | str | Mapping[str, object]

#: Jobs in one request.
_PAGE = 1000
#: Rows of a table in a notebook.
_SHOWN = 50


@dataclass(frozen=True, slots=True, kw_only=True)
class JobRecord:
    """A job as the service describes it at one moment."""

    id: int
    vo: str
    owner: str
    status: str  #: Received, Checking, Waiting, Matched, Running, Stalled, Done, Failed, Killed …
    minor_status: str  #: why it is in this status
    site: str  #: of the latest attempt; before that, the requested one
    fields: Mapping[str, Any] = field(repr=False)  #: all that the service returned, by its names
    name: str = ""
    group: str = ""
    owner_group: str = ""
    application_status: str = ""
    reschedules: int = 0
    submitted_at: datetime | None = None
    started_at: datetime | None = None
    ended_at: datetime | None = None
    exit_code: int | None = None  #: of the latest attempt; None: it has not ended
    #: `memory_mb`, `scratch_mb` and `cpu_seconds` of the latest attempt; empty: in a list, or never matched.
    asked: Mapping[str, float | None] = field(default_factory=dict)
    used: Mapping[str, float | None] = field(default_factory=dict)

    @property
    def has_ended(self) -> bool:
        """Whether the status is final."""
        return self.status in FINAL

    def _repr_html_(self) -> str:
        return _as_table([self.fields])


@dataclass(frozen=True, slots=True, kw_only=True)
class StatusChange:
    """A change of a job's status."""

    job_id: int
    at: datetime
    old_status: str | None  #: None: it was submitted
    status: str  #: the new one
    minor_status: str  #: why it is in this status
    fields: Mapping[str, Any] = field(repr=False)  #: all that the service sent, by its names


class Pages(Generic[_Row]):
    """A list of the service that is fetched page by page while it is iterated, by `for` or `async for`.

    Notebooks show its first rows as a table.
    """

    def __init__(
        self, name: str, fetch: Callable[..., Mapping[str, Any]], read: Callable[[dict[str, Any]], _Row]
    ) -> None:
        """`fetch` requests a page, whose rows are under `name`; `read` makes a row of its JSON."""
        self._name, self._fetch, self._read = name, fetch, read

    def __iter__(self) -> Iterator[_Row]:
        after = None
        while True:
            page = self._fetch(limit=_PAGE, after=after)
            yield from map(self._read, page[self._name])
            if (after := page["next"]) is None:
                return

    async def __aiter__(self) -> AsyncIterator[_Row]:
        after = None
        while True:
            page = await asyncio.to_thread(self._fetch, limit=_PAGE, after=after)
            for each in page[self._name]:
                yield self._read(each)
            if (after := page["next"]) is None:
                return

    def _repr_html_(self) -> str:
        page = self._fetch(limit=_SHOWN)
        more = "" if page["next"] is None else "<p>There are more.</p>"
        return _as_table(page[self._name]) + more


class SubmittedIds(list[int]):
    """The ids of new jobs, in the order of their descriptions."""

    def __init__(self) -> None:
        super().__init__()
        self.warnings: list[str] = []  #: such as of jobs that no queue is eligible for


class ChangedIds(list[int]):
    """The ids of the jobs that were changed, or that are copies."""

    def __init__(self, ids: Iterable[int] = (), refused: Mapping[int, str] | None = None) -> None:
        super().__init__(ids)
        self.refused = dict(refused or {})  #: why others that were named were not, by id
        self.warnings: list[str] = []  #: of copies, as of `SubmittedIds`


def _documented(
    change: JobVerb,
) -> Callable[[Callable[_P, ChangedIds]], Callable[_P, ChangedIds]]:
    """Document the method of a change."""
    jobs = "new jobs, with `warnings`" if change.makes_jobs else "changed jobs"

    values = (
        "`set` has values by keyword, or by name in the Requirements; None takes one away. "
        if change.sets
        else ""
    )

    def document(method: Callable[_P, ChangedIds]) -> Callable[_P, ChangedIds]:
        method.__doc__ = (
            f"{change.summary}\n\n"
            f"{values}Filters are those of `jobs`. Returns the ids of the {jobs}; its `refused` has reasons\n"
            "why others that were named by id were not."
        )
        return method

    return document


def _listing_filters(method: Callable[_P, _T]) -> Callable[_P, _T]:
    """Document the filters of jobs."""
    names = ", ".join(f"`{name}`" for name in FILTERS)
    method.__doc__ = (
        f"{method.__doc__}\n\nFilters are {names}; several values, separated by commas, mean any of them.\n"
    )
    return method


class Client:
    """The jobs, queues and configuration that the bearer of a token may see and change; to be closed."""

    def __init__(self, url: str | None = None, token: str | None = None, *, home: Path | None = None) -> None:
        """Connect to the service at `url`, or to the one of this machine; no request is sent yet."""
        self._service = connection.connect(url=url, token=token, home=home)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Close the connections."""
        self._service.close()

    def submit(
        self,
        *descriptions: Description,
        count: int = 1,
        parameters: Mapping[str, Sequence[object]] | None = None,
        patience: float = submission.PATIENCE,
        idempotency_key: str | None = None,
    ) -> SubmittedIds:
        """Submit jobs with their input sandboxes, and return their ids, with `warnings`.

        For `patience` seconds it waits for a service that is away, as while its database fails over; the
        `details` of an error after that have the `idempotency_key`. By one key the same jobs are stored once.

        `count` copies of each; with `parameters` one job for each combination of the values, which replace
        `%(NAME)s`. Relative names in `InputSandbox` begin at the directory of the file, else at the current
        one. Up to 1,000 jobs are stored as a whole or not at all. Of more, the `details` of an error have
        those that were stored before it as `job_ids`; another exception, such as Ctrl-C, has a note.
        """
        key = submission.make_key() if idempotency_key is None else idempotency_key
        repetition = submission.Repetition(patience=patience, key=key)
        requests = submission.plan_requests(
            self._service,
            list(map(_read_source, descriptions)),
            parameters={name: _read_values(name, given) for name, given in (parameters or {}).items()},
            count=count,
            repetition=repetition,
        )
        send = partial(submission.send_requests, self._service, requests, repetition=repetition)
        ids = SubmittedIds()
        submission.collect_ids(send(warn=ids.warnings.append), ids)
        return ids

    def job(self, job_id: int) -> JobRecord:
        """One job; `fields` has its description, its latest attempt and how long it waited for what."""
        return _read_job(self._service.job(job_id))

    @_listing_filters
    def jobs(self, **filters: str) -> Pages[JobRecord]:
        """The jobs that pass all filters, newest first."""
        return Pages("jobs", partial(self._service.jobs, filters), _read_job)

    def count(self, /, *by: str, **filters: str) -> list[CountedJobs]:
        """Numbers of jobs by some of their fields (default: `status`): rows with a `count`."""
        return list(map(CountedJobs.from_json, self._service.summary(by=by or ("status",), filters=filters)))

    def log(self, job_id: int) -> list[dict[str, Any]]:
        """Every change of a job's status, in order."""
        return self._service.job_log(job_id)

    def logs(self, job_id: int) -> str:
        """The last lines that a job wrote, as of its last heartbeat; `output` has all when it has ended."""
        return str((self._service.job(job_id)["attempt"] or {}).get("output_tail", ""))

    def eligible_queues(self, job_id: int, *, limit: int = 100) -> list[dict[str, Any]]:
        """The queues that a job may run in, as `queue` and `rank`, in the order in which they are filled."""
        return list(self._service.queues_of_job(job_id, limit=limit)["queues"])

    def explain(self, of: int | Description, *, forwarding: bool = False) -> EligibilityReport:
        """Why a job does not run, or where one would run: queues, reasons, changes that would help.

        With `forwarding` also what the queue, its batch system and the matcher decide.
        """
        if isinstance(of, int):
            return EligibilityReport.from_json(self._service.explain(of, forwarding=forwarding))
        source = _read_source(of)
        if not isinstance(source.content, str):
            found = self._service.explain_description(job=source.content, forwarding=forwarding)
        elif (number := submission.count_descriptions(self._service, source)) > 1:
            raise WrongUsage(f"there are {number} descriptions; one can be explained at a time")
        else:
            found = self._service.explain_description(jdl=source.content, forwarding=forwarding)
        return EligibilityReport.from_json(found)

    def forecast_start(self, job_id: int) -> dict[str, Any]:
        """When a waiting job will probably start: `earliest`, `latest`, how many such forecasts `held`."""
        return self._service.forecast_start(job_id)

    def forecast_end(
        self, job_group: str, *, vo: str | None = None, owner: str | None = None
    ) -> dict[str, Any]:
        """When a group's last job starts, `last_start`, and ends, `earliest` and `latest`, probably."""
        given = {"vo": vo, "owner": owner}
        conditions = {name: each for name, each in given.items() if each}
        return self._service.forecast_end({"job_group": job_group, **conditions})

    def shares(self, vo: str | None = None) -> dict[str, Any]:
        """The shares of groups and owners of a VO (None: yours) with waiting jobs, and what corrects them."""
        return self._service.shares(vo)

    def compare(self, first: int, second: int) -> dict[str, Any]:
        """Which of two jobs a pilot for both is given first, and what decides that: `headline`, `chance`."""
        return self._service.compare_jobs(first, second)

    @_documented(KILL)
    def kill(self, /, *job_ids: int, **filters: str) -> ChangedIds:
        return self._change(KILL, job_ids, filters)

    @_documented(RESCHEDULE)
    def reschedule(self, /, *job_ids: int, **filters: str) -> ChangedIds:
        return self._change(RESCHEDULE, job_ids, filters)

    @_documented(DELETE)
    def delete(self, /, *job_ids: int, **filters: str) -> ChangedIds:
        return self._change(DELETE, job_ids, filters)

    @_documented(RESET)
    def reset(self, /, *job_ids: int, **filters: str) -> ChangedIds:
        return self._change(RESET, job_ids, filters)

    @_documented(HOLD)
    def hold(self, /, *job_ids: int, **filters: str) -> ChangedIds:
        return self._change(HOLD, job_ids, filters)

    @_documented(RELEASE)
    def release(self, /, *job_ids: int, **filters: str) -> ChangedIds:
        return self._change(RELEASE, job_ids, filters)

    @_documented(EDIT)
    def edit(self, /, *job_ids: int, set: Mapping[str, object], **filters: str) -> ChangedIds:  # noqa: A002  (as in requests)
        return self._change(EDIT, job_ids, filters, set)

    @_documented(RESUBMIT)
    def resubmit(
        self,
        /,
        *job_ids: int,
        set: Mapping[str, object] | None = None,  # noqa: A002  (as in requests)
        **filters: str,
    ) -> ChangedIds:
        return self._change(RESUBMIT, job_ids, filters, set)

    def wait(self, /, *job_ids: int, timeout: float | None = None, **filters: str) -> dict[int, str]:
        """Wait until jobs, by id or by filters, have ended, or for `timeout` seconds; the status of each.

        Filters, those of `jobs`, are applied once, at the start. There has to be at least one job. A service
        that was reached once and goes away is waited for.
        """
        _refuse_both(job_ids, filters)
        wanted = waiting.find_ids(self._service, filters) if filters else job_ids
        if not wanted:
            none = "no job passes the filters" if filters else "give at least one job id, or filters"
            raise WrongUsage(f"{none}: nothing to wait for is no success")
        seen = deque(waiting.follow_statuses(self._service, wanted, timeout=timeout), maxlen=1)
        return dict(seen.pop()) if seen else {}

    def follow(self, **filters: str) -> Iterator[StatusChange]:
        """Changes of jobs from this call on, as they happen, each once; endless: leave the loop by `break`.

        Filters are those of `jobs` but `local_status`; `status` is the new one. A service that goes away is
        waited for.
        """
        return map(_read_change, waiting.follow_changes(self._service, filters))

    def output(self, job_id: int, directory: Path | str = ".", *, most: int = 50 << 30) -> list[Path]:
        """Unpack the output of a job into a new directory below `directory`, named by its id; the files.

        Nothing is overwritten; an output of more than `most` bytes is rejected.
        """
        return outputs.fetch_files(self._service, job_id, Path(directory, str(job_id)), most=most)

    def outputs(
        self,
        /,
        *job_ids: int,
        directory: Path | str = ".",
        skip_existing: bool = False,
        parallel: int = outputs.PARALLEL,
        most: int = 50 << 30,
        **filters: str,
    ) -> FetchedOutputs:
        """Unpack the outputs of many jobs, by id or by filters, as `output` does, some at a time.

        The result has the `files` of each job, the jobs that were `skipped` since their directory has files,
        and by job why others were `refused`. Filters, those of `jobs`, are applied once, at the start.
        """
        _refuse_both(job_ids, filters)
        wanted = sorted(waiting.find_ids(self._service, filters)) if filters else job_ids
        return outputs.fetch_all(
            self._service,
            wanted,
            Path(directory),
            most=most,
            skip_existing=skip_existing,
            parallel=parallel,
        )

    def pools(self, **filters: str) -> Pages[dict[str, Any]]:
        """The SubmitPools: Requirements with their jobs and the queues eligible for them."""
        return Pages("pools", partial(self._service.pools, filters), dict)

    def queues(self, **filters: str) -> Pages[dict[str, Any]]:
        """The batch queues with their parameters."""
        return Pages("queues", partial(self._service.queues, filters), dict)

    def submit_pools(self, *queues: str) -> dict[str, list[str]]:
        """The ids of the pools that each batch queue serves, by address; unknown queues are left out."""
        return dict(self._service.submit_pools(queues)["pools"])

    def get_eligible_nodes(
        self,
        node: str = "Queue",
        ce: Mapping[str, object] | str = "",
        queue: Mapping[str, object] | str = "",
        *,
        vo: str | None = None,
    ) -> dict[str, Any]:
        """The sites, CEs or queues (`node`) that a VO may use and whose parameters match both selections.

        A selection is a mapping of required values, or an expression. The result is a tree: site → CE →
        queue → its effective parameters.
        """
        return self._service.eligible_nodes(vo=vo, node=node, ce=ce, queue=queue)

    def sites(self) -> Pages[dict[str, Any]]:
        """The sites, and what limits matches there."""
        return Pages("sites", self._service.sites, dict)

    def config(self) -> dict[str, Any]:
        """The configuration in force, as far as the token may see it, with its `version`."""
        return self._service.config()

    def preview_config(self, changes: Mapping[str, object]) -> ConfigPreview:
        """Preview how new values at some paths would affect waiting and running jobs; None removes one."""
        return ConfigPreview.from_json(self._service.preview_config(_as_edits(changes)))

    def set_config(self, changes: Mapping[str, object], *, message: str, version: int | None = None) -> int:
        """Give paths other values (None removes one), and return the new version of the configuration.

        A path that somebody changed after `version` (default: the version in force now) is rejected (409).
        """
        before = self._service.config()["version"] if version is None else version
        edits = {**_as_edits(changes), "message": message}
        return int(self._service.patch_config(edits, version=before)["version"])

    def _change(
        self,
        change: JobVerb,
        job_ids: Sequence[int],
        filters: Mapping[str, str],
        values: Mapping[str, object] | None = None,
    ) -> ChangedIds:
        _refuse_both(job_ids, filters)
        if not job_ids and not filters:
            return ChangedIds()
        warnings: list[str] = []
        answer = changes.change_all(
            self._service, change, filters, job_ids, warn=warnings.append, values=values
        )
        refused = {int(each["job_id"]): str(each["reason"]) for each in answer["refused"]}
        ids = ChangedIds(map(int, answer["job_ids"]), refused)
        ids.warnings = warnings
        return ids


class Resources:
    """The resources that a VO may use; the helper of DIRAC's RFC #7 by its name."""

    def __init__(self, vo: str | None = None, *, client: Client | None = None) -> None:
        """Resources of a VO (default: the token's), read by a client (default: a new `Client()`)."""
        self._vo, self._client = vo, Client() if client is None else client

    def get_eligible_nodes(
        self,
        node: str = "Queue",
        ce: Mapping[str, object] | str = "",
        queue: Mapping[str, object] | str = "",
    ) -> dict[str, Any]:
        """The tree of nodes as of `Client.get_eligible_nodes`."""
        return self._client.get_eligible_nodes(node, ce, queue, vo=self._vo)


def _in_thread(
    method: Callable[Concatenate[Client, _P], _T],
) -> Callable[Concatenate["AsyncClient", _P], Coroutine[Any, Any, _T]]:
    async def run(self: "AsyncClient", /, *args: _P.args, **kwargs: _P.kwargs) -> _T:
        return await asyncio.to_thread(method, self.blocking, *args, **kwargs)

    run.__name__, run.__doc__ = method.__name__, method.__doc__
    return run


class AsyncClient:
    """`Client` for programs with an event loop: its methods are coroutines, its lists are for `async for`.

    Each call runs in a thread of the loop's executor; a cancelled call is not interrupted.
    """

    def __init__(self, url: str | None = None, token: str | None = None, *, home: Path | None = None) -> None:
        """Connect to the service at `url`, or to the one of this machine; no request is sent yet."""
        self.blocking = Client(url, token, home=home)
        self.jobs, self.pools, self.queues = self.blocking.jobs, self.blocking.pools, self.blocking.queues
        self.sites = self.blocking.sites

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def follow(self, **filters: str) -> AsyncIterator[StatusChange]:
        """Changes of jobs from this call on, for `async for`; a loop that is left ends within seconds."""
        service = self.blocking._service  # noqa: SLF001 - the same class in another form
        return _follow(await asyncio.to_thread(waiting.follow_or_pause, service, filters))

    close = _in_thread(Client.close)
    submit = _in_thread(Client.submit)
    job = _in_thread(Client.job)
    count = _in_thread(Client.count)
    log = _in_thread(Client.log)
    explain = _in_thread(Client.explain)
    forecast_start = _in_thread(Client.forecast_start)
    forecast_end = _in_thread(Client.forecast_end)
    shares = _in_thread(Client.shares)
    compare = _in_thread(Client.compare)
    resubmit = _in_thread(Client.resubmit)
    logs = _in_thread(Client.logs)
    eligible_queues = _in_thread(Client.eligible_queues)
    kill = _in_thread(Client.kill)
    reschedule = _in_thread(Client.reschedule)
    delete = _in_thread(Client.delete)
    reset = _in_thread(Client.reset)
    hold = _in_thread(Client.hold)
    release = _in_thread(Client.release)
    edit = _in_thread(Client.edit)
    wait = _in_thread(Client.wait)
    output = _in_thread(Client.output)
    outputs = _in_thread(Client.outputs)
    config = _in_thread(Client.config)
    submit_pools = _in_thread(Client.submit_pools)
    get_eligible_nodes = _in_thread(Client.get_eligible_nodes)
    preview_config = _in_thread(Client.preview_config)
    set_config = _in_thread(Client.set_config)


async def _follow(found: Iterator[Mapping[str, Any] | None]) -> AsyncIterator[StatusChange]:
    while True:
        change = await asyncio.to_thread(next, found)
        if change is not None:
            yield _read_change(change)


def _refuse_both(job_ids: Sequence[int], filters: Mapping[str, str]) -> None:
    if job_ids and filters:
        raise WrongUsage("give either job ids or filters, not both")


def _read_job(fields: Mapping[str, Any]) -> JobRecord:
    attempt = fields.get("attempt") or {}
    return JobRecord(
        id=int(fields["job_id"]),
        vo=str(fields["vo"]),
        owner=str(fields["owner"]),
        status=str(fields["status"]),
        minor_status=str(fields["minor_status"]),
        site=str(fields["site"]),
        fields=fields,
        name=str(fields.get("job_name", "")),
        group=str(fields.get("job_group", "")),
        owner_group=str(fields.get("owner_group", "")),
        application_status=str(fields.get("application_status", "")),
        reschedules=int(fields.get("reschedules", 0)),
        submitted_at=_read_time(fields.get("submitted_at")),
        started_at=_read_time(fields.get("started_at")),
        ended_at=_read_time(fields.get("ended_at")),
        # A service of 1.0.0 has it in the attempt alone, and only for one job.
        exit_code=fields.get("exit_code", attempt.get("exit_code")),
        asked=attempt.get("asked", {}),
        used=attempt.get("used", {}),
    )


def _read_time(text: str | None) -> datetime | None:
    return datetime.fromisoformat(text) if text else None


def _read_source(description: Description) -> JobSource:
    if isinstance(description, Path):
        return JobSource.from_file(description)
    if isinstance(description, str) and submission.is_file(Path(description)):
        raise WrongUsage(f"{description!r:.200} is the name of a file: give Path({description!r:.200})")
    return JobSource(content=description, name="the description", directory=Path())


def _read_values(name: str, given: Sequence[object]) -> list[str]:
    if isinstance(given, str) or not len(given):  # an array has no truth value
        raise WrongUsage(f"parameters: {name}: {given!r:.80}, allowed is a list of values, at least one")
    return [str(each) for each in given]


def _read_change(found: Mapping[str, Any]) -> StatusChange:
    return StatusChange(
        job_id=found["job_id"],
        at=datetime.fromisoformat(found["at"]),
        old_status=found["from"],
        status=found["to"],
        minor_status=found["minor"],
        fields=found,
    )


def _as_edits(changes: Mapping[str, object]) -> dict[str, object]:
    return {
        "set": {path: value for path, value in changes.items() if value is not None},
        "remove": [path for path, value in changes.items() if value is None],
    }


def _as_table(rows: Sequence[Mapping[str, Any]]) -> str:
    """An HTML table of the columns that all rows have, those of jobs in the order of `pilotage job list`."""
    if not rows:
        return "<p>none</p>"
    jobs = [each.name for each in BRIEF if each.name in rows[0]]
    columns = jobs or [name for name, value in rows[0].items() if not isinstance(value, Mapping | list)]
    head = "".join(f"<th>{escape(name)}</th>" for name in columns)
    body = "".join(
        f"<tr>{''.join(f'<td>{escape(_as_text(row.get(name)))}</td>' for name in columns)}</tr>"
        for row in rows
    )
    return f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"


def _as_text(value: object) -> str:
    return "" if value is None else str(value)
