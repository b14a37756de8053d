"""Client of the HTTP interface: one method per request, returning the parsed JSON, and its errors."""

import json
import os
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, BinaryIO, Final, Protocol, Self, TypeVar
from urllib.parse import quote, urlencode

from pilotage.fabric.pilot.service import transport as trust
from pilotage.fabric.pilot.service.transport import (
    MOST_POOLS,
    Away,
    Refused,
    Rejection,
    TokenSource,
    Transport,
)
from requirements.errors import PilotageError, format_ids

_Answer = TypeVar("_Answer")


class ServiceAway(Away, PilotageError):
    """The service does not respond in time: try again later; or its address is none."""

    code = "service_away"


class ApiError(Refused, PilotageError):
    """The service refuses the request."""

    def __init__(
        self,
        message: str,
        *,
        status: int,
        code: str,
        details: Mapping[str, Any],
        retry_after: float | None = None,
    ) -> None:
        PilotageError.__init__(self, message)
        self.status = status  #: of HTTP
        self.code = code
        self.retry_after = retry_after  #: seconds; None: trying again will not help
        self.details = details


def is_passing(error: ServiceAway | ApiError) -> bool:
    """Whether the same request may be answered later, while the service or its database starts again."""
    return isinstance(error, ServiceAway) or error.status in _PASSING


#: Seconds until the next try, where the service states none.
_PAUSE: Final = 2.0
#: A refusal for good, by a status that otherwise passes.
_FINAL: Final = frozenset({"quota_exceeded"})


def wait_out(
    request: Callable[[], _Answer],
    *,
    patience: float,
    warn: Callable[[str], object],
    clock: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], object] = time.sleep,
) -> _Answer:
    """The answer to a request that may come twice, repeated while the service is away or overloaded.

    It pauses as long as the service states, and raises the last error when `patience` seconds are over.
    """
    deadline, has_warned = clock() + patience, False
    while True:
        try:
            return request()
        except (ServiceAway, ApiError) as error:
            pause = error.retry_after or _PAUSE
            is_final = not is_passing(error) or error.code in _FINAL
            if is_final or clock() + pause > deadline:
                raise
            if not has_warned:
                warn(f"{error}; trying again for {patience:g} s")
            has_warned = True
        sleep(pause)


Json = dict[str, Any]
#: Answers of a service, or of a proxy before it, that is overloaded or not up.
_PASSING: Final = frozenset({429, 502, 503, 504})
#: Bytes of a list of keys that are read.
_MOST_KEYS: Final = 64 << 10
#: By these a service refuses whoever asks.
_ABOUT_THE_TOKEN: Final = frozenset({401, 403})


def require_known(answer: Json) -> Json:
    """The answer, unless it names values of a filter that are unknown to the service; jobs may be changed."""
    if not (unknown := answer.get("unknown")):
        return answer
    message = "; ".join(each["message"] for each in unknown)
    if changed := answer.get("job_ids"):
        message += f"; jobs with the other values were changed: {format_ids(changed)}"
    details = {"unknown": unknown, "job_ids": changed or []}
    raise ApiError(message, status=404, code="unknown_value", details=details)


class RenewableToken(TokenSource, Protocol):
    """A token that may be another one for each request, and can be renewed."""

    def keep(self, token: str) -> None:
        """Use this one, which was renewed, from now on."""

    def is_due(self) -> bool:
        """Whether it is to be renewed."""


class _ClientTransport(Transport):
    """Requests whose errors are for people and programs: a status is one, whatever it is."""

    longest_answer = 1 << 30

    def __init__(self, url: str, token: str | TokenSource, *, whose: str, **more: Any) -> None:
        super().__init__(url, token, **more)
        self._whose = whose

    def unreachable(self, error: Exception | str) -> Exception:
        if isinstance(error, TimeoutError):
            return ServiceAway(f"{self.url} does not answer in time")
        why = error if isinstance(error, str) else f" cannot be reached: {trust.name_error(error)}"
        return ServiceAway(f"{self.url}{why}")

    def rejection(self, found: Rejection) -> Exception:
        is_named = self._whose and found.status in _ABOUT_THE_TOKEN
        return ApiError(
            f"{self._whose}: {found.message}" if is_named else found.message,
            status=found.status,
            code=found.code,
            details=found.details,
            retry_after=found.retry_after,
        )


class ServiceClient:
    """Speaks for the bearer of one token with one service; to be closed.

    Every method raises `ApiError` when the service refuses and `ServiceAway` when nothing answers.
    """

    def __init__(
        self,
        url: str,
        token: str | RenewableToken,
        *,
        whose: str = "",
        authorities: Path | None = None,
        proxy: str | None = None,
    ) -> None:
        """Create it with a token (empty: none); `whose` it is appears in the message if it is refused.

        `proxy` is its address or `none`; None: the environment's HTTPS_PROXY and NO_PROXY for HTTPS, where a
        proxy never sees the token.

        Raises:
            ServiceAway: The address is none, so that nothing answers there.
            ValueError: There are no such CA certificates, or the address of the proxy is invalid.
        """
        try:
            is_tls = trust.split_address(url).scheme == "https"
        except trust.InvalidAddress as error:
            raise ServiceAway(str(error)) from None
        self._token = token
        self._http = _ClientTransport(
            url,
            token,
            whose=whose,
            proxy=trust.choose_proxy(url, proxy, os.environ if is_tls else {}),
            context=trust.tls_context(authorities) if is_tls else None,
        )
        self.url = self._http.url

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Close the connections."""
        self._http.close()

    def ready(self) -> bool:
        """Whether the service answers and can do its work."""
        try:
            with self._http.open("GET", "/readyz", root=""):
                return True
        except (ServiceAway, ApiError):
            return False

    def read_key_ids(self) -> frozenset[str]:
        """The ids of the keys by which tokens of the installation are verified; empty: of no service."""
        with self._http.open("GET", "/.well-known/jwks.json", root="") as response:
            text = response.read(_MOST_KEYS)
        try:
            return frozenset(str(each["kid"]) for each in json.loads(text)["keys"])
        except (ValueError, KeyError, TypeError):
            return frozenset()

    def upload_sandbox(self, archive: BinaryIO, *, vo: str | None = None) -> str:
        """Store a tar archive, read from where it stands, for the token's VO or `vo`; return its name."""
        owner = {} if vo is None else {"vo": vo}
        return str(self._http.upload_stream(_with_query("/sandboxes", owner), archive).body["sandbox"])

    def plan_submission(self, question: Mapping[str, object]) -> Json:
        """The requests that submit some sources, and the files that each needs."""
        return self._call("POST", "/jobs/plan", json=dict(question))

    def submit(
        self,
        *,
        jdls: Sequence[str] = (),
        jobs: Sequence[Mapping[str, object]] = (),
        sandbox: str | None = None,
        idempotency_key: str,
        warn: Callable[[str], object] = lambda _: None,
    ) -> list[int]:
        """Submit descriptions, JDL or YAML texts or JSON objects; all or none is stored.

        The same `idempotency_key` again gives the same ids, not more jobs. `warn` gets each warning, such as
        of a job that no queue is eligible for.
        """
        body: Json = {"jdls": list(jdls)} if jdls else {"jobs": list(jobs)}
        if sandbox is not None:
            body["sandbox"] = sandbox
        answer = self._call_keyed("/jobs", idempotency_key, json=body)
        for warning in answer.get("warnings", ()):
            warn(warning)
        return [int(job_id) for job_id in answer["job_ids"]]

    def job(self, job_id: int) -> Json:
        """All about one job."""
        return self._call("GET", f"/jobs/{job_id}")

    def jobs(self, filters: Mapping[str, str], *, limit: int = 100, after: object = None) -> Json:
        """One page of jobs under `jobs`; `next` goes into `after` for the one behind it."""
        return require_known(self._page("/jobs", filters, limit=limit, after=after))

    def changes(self, filters: Mapping[str, str], *, limit: int = 1000, after: str | None = None) -> Json:
        """Changes of jobs behind a cursor under `changes`, the cursor behind them as `next`, and `more`."""
        return self._page("/jobs/changes", filters, limit=limit, after=after)

    def events(self, filters: Mapping[str, str], *, seconds: float) -> Iterator[tuple[str, Json | None]]:
        """Changes of jobs as they happen, each with the cursor behind it; at most for so long.

        The service may end them earlier. Cursors come without a change, too: first, when changes from there
        on will follow, and then every few seconds.
        """
        cursor, change = "", None
        path = _with_query("/jobs/events", {**filters, "seconds": f"{seconds:.3f}"})
        with self._http.open("GET", path, may_pause=True) as response:
            for encoded in response:
                line = encoded.decode("utf-8").rstrip("\r\n")
                name, _, value = line.partition(": ")
                if name == "id":
                    cursor = value
                elif name == "data":
                    change = json.loads(value)
                elif not line:
                    yield cursor, change
                    change = None

    def summary(self, *, by: Sequence[str], filters: Mapping[str, str]) -> list[Json]:
        """Numbers of jobs by some of their fields."""
        answer = self._call("GET", "/jobs/summary", params={"by": ",".join(by), **filters})
        rows: list[Json] = require_known(answer)["summary"]
        return rows

    def accounting(self, asked: Mapping[str, str]) -> Json:
        """Used resources; `asked` is the query of `GET /accounting`."""
        return self._call("GET", "/accounting", params=dict(asked))

    def accounting_csv(self, asked: Mapping[str, str]) -> str:
        """The same as CSV."""
        with self._http.open("GET", _with_query("/accounting.csv", asked)) as response:
            return response.read().decode("utf-8")

    def usage_records(self, site: str, month: str) -> Iterator[Json]:
        """What each attempt at a site used that ended in a month such as `2026-10`: the answers, by page."""
        after: int | None = 0
        while after is not None:
            answer = self._call(
                "GET", "/accounting/records", params={"site": site, "month": month, "after": after}
            )
            after = answer["next"]
            yield answer

    def job_log(self, job_id: int) -> list[Json]:
        """Every change of a job's status, in order."""
        return self._all_rows(f"/jobs/{job_id}/log", "log", {})

    def local_jobs(self, job_id: int, *, limit: int, state: str | None = None) -> Json:
        """The first local jobs of a grid job; `next` is null if these are all."""
        params = {"limit": str(limit), **({"state": state} if state else {})}
        return self._call("GET", f"/jobs/{job_id}/local-jobs", params=params)

    def explain(self, job_id: int, *, forwarding: bool = False) -> Json:
        """Why a job does not run; with `forwarding` also what is decided where."""
        return self._call("GET", f"/jobs/{job_id}/explain", params={"forwarding": forwarding})

    def queues_of_job(self, job_id: int, *, limit: int) -> Json:
        """The eligible queues of a job, the highest rank first."""
        return self._call("GET", f"/jobs/{job_id}/queues", params={"limit": limit})

    def forecast_start(self, job_id: int) -> Json:
        """When a waiting job will probably start, and how often such forecasts held."""
        return self._call("GET", f"/jobs/{job_id}/start")

    def forecast_end(self, filters: Mapping[str, str]) -> Json:
        """When a group of jobs is probably done; `filters`: of the group, the VO and the owner."""
        return self._call("GET", "/jobs/end", params=filters)

    def explain_description(
        self,
        *,
        jdl: str | None = None,
        job: Mapping[str, object] | None = None,
        forwarding: bool = False,
    ) -> Json:
        """Whether a description that is not submitted would find queues: its text, or an object."""
        body: Json = {"jdl": jdl} if jdl is not None else {"jobs": [dict(job or {})]}
        return self._call("POST", "/explain", json=body, params={"forwarding": forwarding})

    def explain_queue(self, address: str) -> Json:
        """The waiting jobs that a queue, `Site/CE/Queue`, may run, and the reasons against the others."""
        return self._call("GET", f"/resources/queues/{quote(address)}/explain")

    def change_jobs(self, verb: str, which: Mapping[str, object]) -> Json:
        """Change jobs, by `ids` or by filters: one page, with `next` behind which there may be more."""
        return self._call("POST", f"/jobs/{verb}", json=dict(which), keeps_numbers=True)

    def output(self, job_id: int, to: BinaryIO) -> None:
        """Write the output archive of a job to a file."""
        self._http.download(f"/jobs/{job_id}/output", to)

    def resubmit_jobs(
        self,
        ids: Sequence[int],
        *,
        idempotency_key: str,
        values: Mapping[str, object] | None = None,
        dry_run: bool = False,
    ) -> Json:
        """Submit copies of jobs; the ids of the new ones as `job_ids`, `refused`, and `warnings`.

        `values`: what differs in the copies; `dry_run`: none is made, the ids are those of the jobs.
        """
        body: Json = {"ids": list(ids)} | ({"set": dict(values)} if values else {})
        body |= {"dry_run": True} if dry_run else {}
        return self._call_keyed("/jobs/resubmit", idempotency_key, json=body, keeps_numbers=True)

    def resubmit(self, job_id: int, *, idempotency_key: str) -> Json:
        """The same for one job, as services of 1.0 have it."""
        return self._call_keyed(f"/jobs/{job_id}/resubmit", idempotency_key)

    def whoami(self) -> Json:
        """The bearer of the token."""
        return self._call("GET", "/tokens/me")

    def revoke(self, token: str) -> None:
        """Revoke a token, given itself or by its id."""
        self._call("POST", "/tokens/revoke", json={"token" if token.count(".") == 2 else "jti": token})

    def begin_device_login(self) -> Json:
        """Begin a login that a person confirms in a browser; needs no token."""
        return self._call("POST", "/device-logins")

    def fetch_device_token(self) -> Json:
        """The `token` of a login, whose `device_code` is this client's; null until it is confirmed."""
        return self._call("POST", "/device-logins/token")

    def login_link(self, wishes: Mapping[str, str]) -> Json:
        """The `path` of a link that signs a browser in, once, for ourselves or whom the wishes name."""
        return self._call("POST", "/login-links", json=dict(wishes))

    def shares(self, vo: str | None = None) -> Json:
        """The shares of a VO (None: that of the token), with the use that corrects them."""
        return self._call("GET", "/shares", params={} if vo is None else {"vo": vo})

    def compare_jobs(self, first: int, second: int) -> Json:
        """Which of two jobs a pilot for both is given first, and what decides that."""
        return self._call("GET", "/shares/order", params={"first": first, "second": second})

    def pools(self, filters: Mapping[str, str], *, limit: int = 100, after: object = None) -> Json:
        """One page of SubmitPools under `pools`."""
        return self._page("/pools", filters, limit=limit, after=after)

    def pool(self, pool_id: str) -> Json:
        """One SubmitPool with its queues and jobs."""
        return self._call("GET", f"/pools/{quote(pool_id, safe='')}")

    def queues(self, filters: Mapping[str, str], *, limit: int = 100, after: object = None) -> Json:
        """One page of batch queues under `queues`, with their parameters."""
        return self._page("/resources/queues", filters, limit=limit, after=after)

    def queue(self, address: str, vo: str) -> Json:
        """The effective parameters of a queue, `Site/CE/Queue`, for a VO (empty: for every VO)."""
        return self._call("GET", f"/resources/queues/{quote(address)}", params={"vo": vo})

    def eligible_nodes(
        self,
        *,
        vo: str | None = None,
        node: str = "Queue",
        ce: Mapping[str, object] | str = "",
        queue: Mapping[str, object] | str = "",
    ) -> Json:
        """The sites, CEs or queues whose parameters match both selections, as a tree."""
        body = {"node": node, **{name: value for name, value in (("ce", ce), ("queue", queue)) if value}}
        return self._call(
            "POST", "/resources/getEligibleNodes", json=body if vo is None else {**body, "vo": vo}
        )

    def submit_pools(self, queues: Sequence[str]) -> Json:
        """The ids of the SubmitPools of each queue under `pools`, and the queues that are `unknown`."""
        return self._queue_pools({"queues": list(queues)})

    def describe_queues(self, queues: Sequence[str], vo: str) -> Json:
        """The parameters of many queues for a VO under `queues`, and those that do not exist: `unknown`."""
        return self._call("POST", "/resources/queues", json={"queues": list(queues), "vo": vo})

    def pilot_groups(self, queues: Sequence[str]) -> Json:
        """The pools that each queue, `Site/CE/Queue`, is eligible for, by the flags that pilots for them get.

        The pools of a queue are under `pools`, the same by flags under `flags`.
        """
        return self._queue_pools({"queues": list(queues), "flags": True})

    def _queue_pools(self, body: Json) -> Json:
        """All pages of the pools of queues, as one; a service of 1.0 answers with one page."""
        path, params = "/matcher/getSubmitPoolsForQueue", {"limit": str(MOST_POOLS)}
        whole = page = self._call("POST", path, json=body, params=params)
        while page.get("next"):
            page = self._call("POST", path, json=body, params={**params, "after": page["next"]})
            for queue, pools in page["pools"].items():
                whole["pools"].setdefault(queue, []).extend(pools)
            for queue, groups in page.get("flags", {}).items():
                _add_groups(whole["flags"].setdefault(queue, []), groups)
        return whole

    def demand(self, resources: Sequence[Mapping[str, object]]) -> Json:
        """The `task_queues` that some resources may serve now, and which of them each may: `resources`."""
        return self._call(
            "POST", "/matcher/getDemand", json={"resources": [dict(each) for each in resources]}
        )

    def pilots(self, filters: Mapping[str, str], *, limit: int = 100, after: object = None) -> Json:
        """One page of pilots under `pilots`."""
        return self._page("/pilots", filters, limit=limit, after=after)

    def pilot(self, stamp: str) -> Json:
        """One pilot."""
        return self._call("GET", f"/pilots/{quote(stamp, safe='')}")

    def pilot_output(self, stamp: str) -> Json:
        """The ends of what a failed pilot wrote: `stdout`, `stderr`."""
        return self._call("GET", f"/pilots/{quote(stamp, safe='')}/output")

    def keep_pilot_output(self, stamp: str, *, stdout: str, stderr: str) -> Json:
        """Store the ends of what a pilot wrote."""
        body = {"stdout": stdout, "stderr": stderr}
        return self._call("POST", f"/pilots/{quote(stamp, safe='')}/output", json=body)

    def pilot_summary(self, *, by: Sequence[str], filters: Mapping[str, str]) -> list[Json]:
        """Numbers of pilots by some of their fields, with how they fared."""
        return self._rows("GET", "/pilots/summary", "summary", params={"by": ",".join(by), **filters})

    def pilot_standings(self, stamps: Sequence[str]) -> Mapping[str, str]:
        """State of any pilot with each stamp, whoever submitted it: `active`, `ended` or `unknown`."""
        answer = self._call("POST", "/pilots/standings", json={"stamps": list(stamps)})
        standings: Mapping[str, str] = answer["standings"]
        return standings

    def register_pilots(self, pilots: Sequence[Mapping[str, object]], *, vo: str) -> Mapping[str, str]:
        """Store the intents to submit pilots (`stamp`, `queue` or `possible_queues`); secrets by stamp."""
        answer = self._call("POST", "/pilots/registrations", json={"vo": vo, "pilots": list(pilots)})
        secrets: Mapping[str, str] = answer["secrets"]
        return secrets

    def set_pilot_statuses(self, reports: Sequence[Mapping[str, object]]) -> frozenset[str]:
        """Report the statuses of pilots; the stamps of those that have another one all the same."""
        answer = self._call("POST", "/pilots/statuses", json={"reports": list(reports)})
        return frozenset(map(str, answer["unchanged"]))

    def report_process(self, report: Mapping[str, object]) -> None:
        """Report that a director works; `ApiError` `other_process` if another process does under its name."""
        self._call("POST", "/site-processes", json=dict(report))

    def renew_token(self) -> None:
        """Exchange the token for one that expires later, if it is due and can be kept."""
        if not isinstance(self._token, str) and self._token.is_due():
            self._token.keep(str(self._call("POST", "/tokens/renew")["token"]))

    def site_processes(self) -> list[Json]:
        """The directors and gateways, with their last reports."""
        return self._rows("GET", "/site-processes", "processes")

    def forget_process(self, name: str) -> list[Json]:
        """Forget the directors and gateways of this name, which were taken out of service: these."""
        return self._rows("POST", "/site-processes/forget", "processes", json={"name": name})

    def sites(self, *, limit: int = 100, after: object = None) -> Json:
        """One page of sites, with what limits matches there, under `sites`."""
        return self._page("/sites", {}, limit=limit, after=after)

    def site(self, site: str) -> Json:
        """Limits of matches at a site, and its advertisements."""
        return self._call("GET", f"/sites/{quote(site, safe='')}")

    def ban(self, site: str, *, reason: str, until: str | None = None) -> Json:
        """Give a site no jobs but tests; `until` is an RFC 3339 time."""
        body = {"reason": reason, "until": until}
        return self._call("POST", f"/sites/{quote(site, safe='')}/ban", json=body)

    def allow(self, site: str) -> Json:
        """Give a site jobs again."""
        return self._call("POST", f"/sites/{quote(site, safe='')}/allow")

    def downtimes(self, site: str | None = None) -> list[Json]:
        """The downtimes of a site (None: of all) and its CEs that are not over."""
        params = {} if site is None else {"site": site}
        return self._rows("GET", "/downtimes", "downtimes", params=params)

    def plan_downtime(
        self, place: str, *, begins: str, ends: str, reason: str, severity: str = "OUTAGE"
    ) -> Json:
        """Plan a downtime of a site or `Site/CE`; times as of RFC 3339."""
        body = {"place": place, "begins": begins, "ends": ends, "reason": reason, "severity": severity}
        return self._call("POST", "/downtimes", json=body)

    def remove_downtime(self, downtime_id: int) -> list[Json]:
        """Remove a downtime; those that are left."""
        return self._rows("POST", f"/downtimes/{downtime_id}/remove", "downtimes")

    def import_downtimes(
        self, source: str, stated: Sequence[Json], *, unreadable: Sequence[str] = ()
    ) -> Json:
        """Replace the downtimes of a feed by what it states now; what has one of these ids stays."""
        feed = {"source": source, "downtimes": list(stated), "unreadable": list(unreadable)}
        return self._call("POST", "/downtimes/import", json=feed)

    def excluded_nodes(self, site: str) -> list[Json]:
        """The nodes of a site that take no jobs for a while."""
        return self._rows("GET", f"/sites/{quote(site, safe='')}/nodes", "nodes")

    def seen_hardware(self, site: str | None = None) -> list[Json]:
        """The hardware that pilots of a site (None: of all) had in the last 90 days."""
        return self._all_rows("/hardware", "hardware", {} if site is None else {"site": site})

    def readmit_node(self, site: str, node: str) -> list[Json]:
        """Give a node of a site jobs again; the nodes that are still excluded."""
        return self._rows("POST", f"/sites/{quote(site, safe='')}/readmit", "nodes", json={"node": node})

    def watermark(self, site: str) -> int:
        """A watermark: fetch it before you count, and state it as `as_of` in the advertisement."""
        return int(self._call("POST", f"/sites/{quote(site, safe='')}/watermark")["watermark"])

    def advertise(self, scope: str, said: Mapping[str, object]) -> Json:
        """Say how many jobs a site, `Site/CE` or `Site/CE/Queue` has."""
        return self._call("POST", f"{scope_path(scope)}/advertisement", json=dict(said))

    def drain_queue(self, queue: str, *, message: str) -> Json:
        """Give a queue no new jobs; the version of the configuration that says so."""
        return self._call("POST", f"/resources/queues/{queue}/drain", json={"message": message})

    def resume_queue(self, queue: str) -> Json:
        """Take back what `drain_queue` did; the version of the configuration that says so."""
        return self._call("POST", f"/resources/queues/{queue}/resume", json={})

    def config(self) -> Json:
        """The configuration in force, as far as it may be seen."""
        return self._call("GET", "/config")

    def put_config(
        self, *, text: str, source: str, message: str, version: int, guards: Sequence[str] = ()
    ) -> Json:
        """Make a text the configuration in force; `version` is the one that it replaces."""
        body: Json = {"text": text, "source": source, "message": message}
        if guards:
            body["guard"] = list(guards)
        return self._call("PUT", "/config", json=body, headers={"If-Match": str(version)})

    def patch_config(self, edits: Mapping[str, object], *, version: int) -> Json:
        """Change single paths (`set`, `remove`), as they were in `version`; what was changed."""
        return self._call("PATCH", "/config", json=dict(edits), headers={"If-Match": str(version)})

    def preview_config(self, change: Mapping[str, object]) -> Json:
        """Preview of a change: edits, or a whole `text`."""
        return self._call("POST", "/config/preview", json=dict(change))

    def rollback_config(self, version: int, *, message: str = "") -> Json:
        """Make all that we may change as it was in a version."""
        body = {"version": version, **({"message": message} if message else {})}
        return self._call("POST", "/config/rollback", json=body)

    def config_versions(self, *, limit: int = 100, path: str = "") -> list[Json]:
        """The latest versions of the configuration that changed something at a path, the newest first."""
        params = {"limit": str(limit), "path": path}
        return self._rows("GET", "/config/versions", "versions", params=params)

    def config_temporary(self, *, path: str = "") -> list[Json]:
        """The values that an agent will revert, the next first."""
        return self._rows("GET", "/config/temporary", "values", params={"path": path})

    def config_values(self, path: str, vo: str | None, *, inherited: bool = False) -> list[Json]:
        """The values at a path and where they are written; `inherited`: of a queue also without a VO."""
        params = {"path": path, "inherited": inherited} | ({} if vo is None else {"vo": vo})
        return self._all_rows("/config/values", "values", params)

    def config_blame(self, path: str, vo: str | None) -> Json:
        """Where the values at a path are written, by whom, and which jobs they keep away."""
        return self._call("GET", "/config/blame", params={"path": path} | ({"vo": vo} if vo else {}))

    def config_diff(self, before: int, after: int | None = None) -> Json:
        """Differences between two versions of the configuration; None: the newest."""
        params = {"from": str(before)} | ({} if after is None else {"to": str(after)})
        return self._call("GET", "/config/diff", params=params)

    def _page(self, path: str, filters: Mapping[str, str], *, limit: int, after: object) -> Json:
        cursor = {} if after is None else {"after": str(after)}
        return self._call("GET", path, params={**filters, "limit": str(limit), **cursor})

    def call(
        self,
        method: str,
        path: str,
        *,
        json: Mapping[str, object] | None = None,
        params: Mapping[str, object] | None = None,
    ) -> Json:
        """The answer of a route below `/api/v1` that a plug-in adds."""
        return self._call(method, path, json=None if json is None else dict(json), params=params)

    def _call(
        self,
        method: str,
        path: str,
        *,
        json: Json | None = None,
        params: Mapping[str, object] | None = None,
        headers: Mapping[str, str] | None = None,
        keeps_numbers: bool = False,
    ) -> Json:
        body: Json | bytes | None = json
        if keeps_numbers:
            from requirements.written_reals import write_json

            body = write_json(json).encode()
        return dict(self._http.call(method, _with_query(path, params or {}), body, headers=headers).body)

    def _call_keyed(self, path: str, key: str, **request: Any) -> Json:
        """Repeat a request once if its answer is lost: with the same key nothing is stored twice.

        `ServiceAway` also if the second one is refused: another process, of another release or in another
        state, may have stored the first one.
        """
        headers = {"Idempotency-Key": key}
        try:
            return self._call("POST", path, headers=headers, **request)
        except ServiceAway as lost:
            try:
                return self._call("POST", path, headers=headers, **request)
            except ApiError as refused:
                raise ServiceAway(f"{lost}; sent again, the request was refused: {refused}") from refused

    def _rows(self, method: str, path: str, key: str, **request: Any) -> list[Json]:
        rows: list[Json] = self._call(method, path, **request)[key]
        return rows

    def _all_rows(self, path: str, key: str, params: Mapping[str, object]) -> list[Json]:
        """The rows of all pages."""
        rows: list[Json] = []
        after: object = 0
        while after is not None:
            page = self._call("GET", path, params={**params, "after": str(after)})
            rows += page[key]
            after = page.get("next")
        return rows


def _with_query(path: str, params: Mapping[str, object]) -> str:
    """A path, whose names may be quoted already, with its query; a list repeats its name."""
    quoted = quote(path, safe="/%")
    lists = {name: each if isinstance(each, list | tuple) else [each] for name, each in params.items()}
    query = urlencode([(name, _as_text(value)) for name, values in lists.items() for value in values])
    return f"{quoted}?{query}" if query else quoted


def _as_text(value: object) -> str:
    """A value of a query as the service reads it."""
    if value is None:
        return ""
    return str(value).lower() if isinstance(value, bool) else str(value)


def _add_groups(groups: list[Json], more: Iterable[Json]) -> None:
    """Add the pools of groups to those of the groups with the same flags."""
    known = {tuple(each["flags"]): each for each in groups}
    for each in more:
        if (group := known.get(tuple(each["flags"]))) is None:
            groups.append(each)
        else:
            group["pools"] += each["pools"]


def scope_path(scope: str) -> str:
    """The path of a site, `Site/CE` or `Site/CE/Queue` that advertises."""
    names = [quote(name, safe="") for name in scope.split("/")]
    return "".join(f"/{kind}/{name}" for kind, name in zip(("sites", "ces", "queues"), names, strict=False))
