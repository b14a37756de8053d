"""The client for Python programs: lists, tables, what is imported when."""

import asyncio
import io
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from copy import copy
from datetime import UTC, datetime
from operator import attrgetter
from pathlib import Path
from typing import Any

import pytest

import pilotage
from pilotage import ApiError, AsyncClient, PilotageError, ServiceAway
from pilotage.cli import output
from pilotage.cli.application import COMMANDS, main
from pilotage.cli.commands import job
from pilotage.cli.errors import WrongUsage
from pilotage.client import own_plan
from pilotage.client.api import ServiceClient
from pilotage.client.changes import JOB_VERBS, JobVerb
from pilotage.client.client import Client, JobRecord, Pages, _read_job


@pytest.fixture
def planned(monkeypatch: pytest.MonkeyPatch) -> None:
    """A service that plans submissions."""

    def plan(_: object, question: Mapping[str, Any]) -> dict[str, Any]:
        parts = question["sources"], question["parameters"], question["count"]
        return own_plan.make_plan(*parts, reason=ApiError("", status=404, code="", details={}))

    monkeypatch.setattr(ServiceClient, "plan_submission", plan)


class Answers:
    """Answers of a service in turn, errors among them, and what was requested."""

    def __init__(self, *answers: object) -> None:
        self.left = list(answers)
        self.requested: list[tuple[str, str, Any]] = []

    def call(self, _: object, method: str, path: str, **more: Any) -> Any:
        self.requested.append((method, path.partition("?")[0], more.get("params") or more.get("json")))
        if isinstance(found := self.left.pop(0), BaseException):
            raise found
        return found


@pytest.fixture
def answer(monkeypatch: pytest.MonkeyPatch) -> Callable[..., Answers]:
    """Let the service answer so, in turn."""

    def begin(*answers: object) -> Answers:
        service = Answers(*answers)
        monkeypatch.setattr(ServiceClient, "_call", lambda *words, **more: service.call(*words, **more))
        return service

    return begin


@pytest.fixture
def client(monkeypatch: pytest.MonkeyPatch) -> Iterator[Client]:
    """A client of a service that tests make up; commands find it, too."""
    monkeypatch.setenv("PILOTAGE_URL", "http://127.0.0.1:9")
    monkeypatch.setenv("PILOTAGE_TOKEN", "x")
    with Client() as client:
        yield client


ROW = {
    "job_id": 7, "vo": "cms", "owner": "ann", "status": "Done", "minor_status": "", "site": "LCG.A.org",
    "job_name": "<b>", "submitted_at": datetime(2026, 1, 1, tzinfo=UTC).isoformat(), "waited": {},
}  # fmt: skip


def pages_of(rows: list[dict[str, Any]], size: int) -> Pages[JobRecord]:
    """A list that the service cuts after `size` rows."""

    def fetch(*, limit: int, after: object = None) -> Mapping[str, Any]:
        begin = int(str(after or 0))
        end = begin + min(size, limit)
        return {"jobs": rows[begin:end], "next": end if end < len(rows) else None}

    return Pages("jobs", fetch, _read_job)


ROWS = [{**ROW, "job_id": number} for number in range(1, 8)]


@pytest.mark.parametrize("size", [1, 3, 7, 100])
def test_a_list_has_the_rows_of_all_pages(size: int) -> None:
    assert [job.id for job in pages_of(ROWS, size)] == list(range(1, 8))


def test_a_list_is_iterated_in_an_event_loop_too() -> None:
    async def ids() -> list[int]:
        return [job.id async for job in pages_of(ROWS, 3)]

    assert asyncio.run(ids()) == list(range(1, 8))


def test_a_notebook_shows_a_table_without_markup_of_others() -> None:
    shown = pages_of(ROWS, 3)._repr_html_()
    assert shown.count("<tr>") == 1 + 3
    assert "&lt;b&gt;" in shown
    assert "<b>" not in shown
    assert shown.endswith("<p>There are more.</p>")
    assert pages_of([], 3)._repr_html_() == "<p>none</p>"


def test_a_job_has_its_name_times_and_exit_code() -> None:
    listed = _read_job({**ROW, "job_group": "scan", "ended_at": None})
    assert (listed.name, listed.group, listed.ended_at, listed.exit_code) == ("<b>", "scan", None, None)
    assert listed.submitted_at == datetime(2026, 1, 1, tzinfo=UTC)
    ended = {**ROW, "ended_at": "2026-01-02T00:00:00Z", "reschedules": 2, "attempt": {"exit_code": 3}}
    shown = _read_job(ended)
    assert (shown.ended_at, shown.exit_code) == (datetime(2026, 1, 2, tzinfo=UTC), 3)
    assert (shown.reschedules, shown.fields) == (2, ended)
    assert (shown.asked, shown.used) == ({}, {}), "as of a service of 1.0.0"
    attempt = {"asked": {"memory_mb": 8000}, "used": {"memory_mb": 1130}}
    shown = _read_job({**ROW, "attempt": attempt})
    assert (shown.asked["memory_mb"], shown.used["memory_mb"]) == (8000, 1130)


def test_importing_the_package_imports_nothing_else() -> None:
    check = "import sys, pilotage; print(*(each for each in sys.modules if each[:5] in ('httpx', 'pilot')))"
    done = subprocess.run([sys.executable, "-c", check], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "pilotage"


def test_all_names_of_the_package_are_there() -> None:
    assert all(getattr(pilotage, name) for name in pilotage.__all__)
    with pytest.raises(AttributeError, match="no attribute 'Server'"):
        _ = pilotage.Server


@pytest.mark.usefixtures("planned")
def test_what_is_wrong_with_a_description_is_an_error_of_ours() -> None:
    with Client("http://127.0.0.1:9", "x") as client, pytest.raises(PilotageError, match="no such file"):
        client.submit({"Executable": "run.sh", "InputSandbox": ["/nowhere/run.sh"]})


@pytest.mark.usefixtures("planned")
def test_a_text_that_is_the_name_of_a_file_is_refused_with_what_to_give(tmp_path: Path) -> None:
    file = tmp_path / "job.jdl"
    file.write_text('Executable = "/bin/true";')
    with Client("http://127.0.0.1:9", "x") as client:
        with pytest.raises(WrongUsage, match=rf"is the name of a file: give Path\('{file}'\)"):
            client.submit(str(file))
        with pytest.raises(PilotageError, match="neither JDL"):
            client.submit("x" * 5000)


class Changes(Client):
    """A client whose service changes all jobs but one that has ended, and notes the filters."""

    def __init__(self) -> None:
        super().__init__("http://127.0.0.1:9", "x")
        self.filters: list[Mapping[str, str]] = []
        self._service._call = self._answer  # type: ignore[method-assign]

    def _answer(self, _method: str, _path: str, *, json: Mapping[str, str], **_: Any) -> dict[str, Any]:
        self.filters.append(json)
        filters = json
        ids = [int(each) for each in filters.get("ids", "1,2").split(",")]
        return {"job_ids": [each for each in ids if each != 3], "refused": []}


@pytest.mark.parametrize("name", ["kill", "reschedule"])
def test_jobs_are_changed_by_ids_or_by_filters_but_not_by_both(name: str) -> None:
    with Changes() as client:
        change = getattr(client, name)
        with pytest.raises(PilotageError, match="either job ids or filters"):
            change(7, status="Waiting")
        assert not client.filters
        assert change() == []
        assert not client.filters
        assert change(2, 3, 4) == [2, 4]
        assert change(status="Waiting") == [1, 2]
        assert client.filters == [{"ids": "2,3,4"}, {"status": "Waiting"}]
        assert len(change(*range(10, 2_510))) == 2_500
        assert [len(each["ids"].split(",")) for each in client.filters[2:]] == [1000, 1000, 500]


#: Methods of `Client` for commands of `pilotage job` that have other names.
_RENAMED = {
    "list": "jobs",
    "top": "count",
    "show": "job",
    "queues": "eligible_queues",
    "forecast": "forecast_end",
}


@pytest.mark.parametrize("command", list(COMMANDS["job"].commands))  # type: ignore[union-attr]
def test_each_command_for_jobs_is_a_method_of_both_clients(command: str) -> None:
    method = _RENAMED.get(command, command)
    assert callable(getattr(Client, method))
    assert method in vars(AsyncClient) or hasattr(AsyncClient("http://127.0.0.1:9", "x"), method)


@pytest.mark.parametrize("change", JOB_VERBS, ids=attrgetter("name"))
def test_command_and_methods_of_a_change_follow_from_its_definition(
    change: JobVerb, answer: Callable[..., Answers], client: Client, capsys: pytest.CaptureFixture[str]
) -> None:
    service = answer(*[{"job_ids": [7], "refused": [{"job_id": 8, "reason": "job 8 is Failed"}]}] * 3)
    values: dict[str, Any] = {"set": {"Memory": 6000, "GPUs": None, "OS": "el9"}} if change.sets else {}
    words = ["--set", "Memory=6000", "--set", "GPUs=", "--set", "OS=el9"] if change.sets else []
    ids = getattr(client, change.name)(7, 8, **values)
    assert (ids, ids.refused) == ([7], {8: "job 8 is Failed"})
    assert asyncio.run(getattr(AsyncClient(), change.name)(7, 8, **values)) == [7]
    with pytest.raises(SystemExit, match="1"):
        main(["job", change.name, "7-8", *words])
    ids_sent = [7, 8] if change.makes_jobs else "7,8"
    assert service.requested == [("POST", f"/jobs/{change.name}", {"ids": ids_sent, **values})] * 3
    shown = capsys.readouterr()
    expected = "7\n" if change.makes_jobs else f"{change.done} 1: 7\n"
    assert (shown.out, shown.err) == (expected, "pilotage: job 8 is Failed\n")
    assert COMMANDS["job"].commands[change.name] == f"job:{change.name}"  # type: ignore[union-attr]
    assert getattr(job, change.name).__doc__.startswith(change.summary)  # an example follows
    for each in (Client, AsyncClient):
        assert getattr(each, change.name).__doc__.startswith(change.summary)


def test_jobs_are_copied_by_filters_whose_copies_pass_them_too(
    answer: Callable[..., Answers], client: Client
) -> None:
    """The ids are found first: a request by filters, repeated, would copy the copies."""
    found = {"jobs": [{"job_id": 8}, {"job_id": 7}], "next": None}
    service = answer(found, {"job_ids": [9, 10], "refused": [], "warnings": ["job 9: no queue"]})
    copies = client.resubmit(status="Failed")
    assert (copies, copies.warnings) == ([9, 10], ["job 9: no queue"])
    assert service.requested == [
        ("GET", "/jobs", {"status": "Failed", "limit": "1000"}),
        ("POST", "/jobs/resubmit", {"ids": [7, 8]}),
    ]


@pytest.mark.parametrize("status", [404, 405])
def test_a_service_of_1_0_copies_one_job_at_a_time(monkeypatch: pytest.MonkeyPatch, status: int) -> None:
    asked: list[str] = []

    def answer(_: object, _method: str, path: str, **_more: object) -> dict[str, Any]:
        asked.append(path)
        if path == "/jobs/resubmit":
            raise ApiError("no such route", status=status, code="not_found", details={})
        if path == "/jobs/9/resubmit":
            raise ServiceAway("no answer")
        return {"job_ids": [len(asked)], "warnings": []}

    monkeypatch.setattr(ServiceClient, "_call", answer)
    with Client("http://127.0.0.1:9", "x") as client:
        assert client.resubmit(7, 8) == [2, 3]
        with pytest.raises(ServiceAway, match=r"new jobs: 5; may be copied or not: 9; not tried: 10"):
            client.resubmit(7, 9, 10)
    assert asked[:3] == ["/jobs/resubmit", "/jobs/7/resubmit", "/jobs/8/resubmit"]


def test_nothing_is_copied_twice_where_services_of_two_releases_answer(
    answer: Callable[..., Answers], client: Client
) -> None:
    service = answer(
        {"job_ids": [*range(5001, 6001)], "warnings": [], "refused": []},
        ApiError("no such route", status=405, code="method_not_allowed", details={}),
    )
    with pytest.raises(ApiError, match="no such route; new jobs: 5001-6000; not tried: 1001-1500"):
        client.resubmit(*range(1, 1501))
    assert [path for _, path, _ in service.requested] == ["/jobs/resubmit"] * 2


@pytest.mark.parametrize(("status", "message"), [(405, "no such route"), (401, "expired"), (429, "too many")])
def test_a_refusal_after_a_lost_answer_proves_nothing_about_the_first_request(
    answer: Callable[..., Answers], client: Client, status: int, message: str
) -> None:
    """During an upgrade the process that stored the copies may be another one than that which refuses."""
    refusal = ApiError(message, status=status, code="refused", details={})
    service = answer(ServiceAway("no answer in time"), refusal)
    told = rf"^no answer in time; sent again, the request was refused: {message}"
    with pytest.raises(ServiceAway, match=told) as broken:
        client.resubmit(*range(1, 1501))
    assert [path for _, path, _ in service.requested] == ["/jobs/resubmit"] * 2
    assert "may be copied or not: 1-1000; not tried: 1001-1500" in str(broken.value)


@pytest.mark.usefixtures("planned")
def test_a_submission_returns_its_warnings_and_prints_nothing(
    answer: Callable[..., Answers], client: Client, capsys: pytest.CaptureFixture[str]
) -> None:
    answer(
        {"job_ids": [5], "warnings": ["job 5: no queue"]},
        {"job_ids": [6], "warnings": ["job 6: no queue"], "refused": []},
        {"job_ids": [7], "warnings": []},
        ApiError("too many", status=429, code="too_many_requests", details={"retry_after": 3}),
    )
    ids = client.submit({"Executable": "/bin/true"})
    copies = client.resubmit(5)
    message = r"too many; submit .* key mine: .*; 1 job submitted before: 7"
    with pytest.raises(ApiError, match=message) as broken:
        client.submit({"Executable": "/bin/true"}, count=1500, patience=0, idempotency_key="mine")
    assert (ids, ids.warnings) == ([5], ["job 5: no queue"])
    assert (copies, copies.warnings) == ([6], ["job 6: no queue"])
    assert broken.value.details == {"retry_after": 3, "job_ids": [7], "idempotency_key": "mine"}
    assert capsys.readouterr() == ("", "")


@pytest.mark.usefixtures("planned")
@pytest.mark.parametrize(
    "error", [KeyboardInterrupt(), FileNotFoundError(2, "No such file", "big.tar")], ids=repr
)
@pytest.mark.parametrize("stored", [2000, 0])
def test_jobs_that_are_stored_before_any_exception_are_in_its_note(
    answer: Callable[..., Answers], client: Client, error: BaseException, stored: int
) -> None:
    parts = [[*range(first, first + 1000)] for first in range(1000, 1000 + stored, 1000)]
    broken = copy(error)
    answer(*({"job_ids": ids, "warnings": []} for ids in parts), broken)
    with pytest.raises(type(error)):
        client.submit({"Executable": "/bin/true"}, count=2500)
    notes = [note for note in getattr(broken, "__notes__", ()) if "submitted before" in note]
    assert notes == (["2,000 jobs submitted before: 1000-2999"] if stored else [])


def test_jobs_are_waited_for_by_filters(monkeypatch: pytest.MonkeyPatch) -> None:
    ended = [{**ROW, "job_id": number} for number in (7, 8)]
    asked: list[Mapping[str, str]] = []

    def jobs(_: object, filters: Mapping[str, str], **_page: object) -> dict[str, Any]:
        asked.append(filters)
        return {"jobs": [] if filters.get("owner") == "bob" else ended, "next": None}

    monkeypatch.setattr(ServiceClient, "jobs", jobs)
    monkeypatch.setattr(ServiceClient, "events", lambda *_, **_more: iter(()))
    with Client("http://127.0.0.1:9", "x") as client:
        assert client.wait(job_group="scan") == {7: "Done", 8: "Done"}
        assert asked == [{"job_group": "scan"}, {"id": "7,8"}]
        for ids, filters in (((), {}), ((), {"owner": "bob"}), ((7,), {"owner": "ann"})):
            with pytest.raises(PilotageError, match=r"nothing to wait for|not both"):
                client.wait(*ids, **filters)


def test_the_last_lines_and_the_queues_of_a_job(monkeypatch: pytest.MonkeyPatch) -> None:
    answers = {"/jobs/7": {"attempt": {"output_tail": "hello"}}, "/jobs/8": {"attempt": None}}
    queues = [{"queue": "LCG.A.org/ce/q", "rank": 1.0}]
    monkeypatch.setattr(
        ServiceClient, "_call", lambda _, _method, path, **_query: answers.get(path, {"queues": queues})
    )
    with Client("http://127.0.0.1:9", "x") as client:
        assert [client.logs(7), client.logs(8)] == ["hello", ""]
        assert client.eligible_queues(7) == queues


def test_a_submission_whose_answer_is_lost_is_repeated_once_with_its_key(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    seen: list[tuple[str, object]] = []

    def answer(_: object, _method: str, path: str, *, headers: Mapping[str, str], **_more: object) -> object:
        seen.append((path, headers["Idempotency-Key"]))
        if len(seen) in (1, 3, 4):
            raise ServiceAway("http://127.0.0.1:9 does not answer in time")
        return {"job_ids": [7], "warnings": []}

    monkeypatch.setattr(ServiceClient, "_call", answer)
    with ServiceClient("http://127.0.0.1:9", "x") as client:
        assert client.submit(jdls=["Executable = 1;"], idempotency_key="k") == [7]
        with pytest.raises(ServiceAway):
            client.resubmit_jobs([7], idempotency_key="l")
    assert seen == [("/jobs", "k")] * 2 + [("/jobs/resubmit", "l")] * 2


def test_the_requests_for_many_jobs_go_on_until_none_is_left(
    answer: Callable[..., Answers], client: Client
) -> None:
    service = answer(
        {"job_ids": [9, 8], "refused": [], "next": 8}, {"job_ids": [5], "refused": [], "next": None}
    )
    assert client.kill(owner="ada") == [9, 8, 5]
    path = "POST", "/jobs/kill"
    assert service.requested == [(*path, {"owner": "ada"}), (*path, {"owner": "ada", "after": 8})]


_REFUSED = ApiError(
    "slow down", status=429, code="too_many_requests", details={"retry_after": 3}, retry_after=3
)


@pytest.mark.parametrize(
    ("error", "message", "uncertain"),
    [
        (
            ServiceAway("no answer"),
            "may be changed or not: 1001-2000; not tried: 2001-2500",
            range(1001, 2001),
        ),
        (_REFUSED, "not tried: 1001-2500", range(0)),
    ],
)
def test_a_change_that_breaks_off_names_what_was_done(
    answer: Callable[..., Answers],
    client: Client,
    error: ServiceAway | ApiError,
    message: str,
    uncertain: range,
) -> None:
    """The same in the command, which calls the same method."""
    refused = [{"job_id": 1, "reason": "job 1 is Done; it cannot become Killed"}]
    answer({"job_ids": [*range(2, 1001)], "refused": refused}, error)
    with pytest.raises(type(error)) as broken:
        client.kill(*range(1, 2501))
    assert str(broken.value) == f"{error}; changed: 2-1000; refused: 1; {message}"
    details = broken.value.details
    assert (details["job_ids"], details["refused"]) == (list(range(2, 1001)), refused)
    assert details["uncertain"] == list(uncertain)
    assert details["not_tried"] == list(range(1001 + len(uncertain), 2501))
    if isinstance(broken.value, ApiError):
        assert (broken.value.status, broken.value.retry_after, details["retry_after"]) == (429, 3, 3)


def test_a_change_by_filters_that_breaks_off_names_what_was_done(
    answer: Callable[..., Answers], client: Client
) -> None:
    answer({"job_ids": [9, 8], "refused": [], "next": 8}, ServiceAway("no answer"))
    with pytest.raises(ServiceAway, match="changed: 8-9; others"):
        client.kill(owner="ada")


def test_an_error_of_the_only_request_says_nothing_else(
    answer: Callable[..., Answers], client: Client
) -> None:
    answer(ServiceAway("no answer"))
    with pytest.raises(ServiceAway, match=r"^no answer$"):
        client.kill(1, 2, 3)


@pytest.mark.parametrize("values", [[], "abc", ()])
def test_the_values_of_a_parameter_are_a_list_with_at_least_one(values: Any) -> None:
    with Changes() as client, pytest.raises(PilotageError, match=r"energy: .*, allowed is a list of values"):
        client.submit({"Executable": "/bin/true"}, parameters={"energy": values})


@pytest.mark.usefixtures("planned")
def test_only_one_description_is_explained() -> None:
    with Changes() as client, pytest.raises(PilotageError, match="there are 2 descriptions"):
        client.explain("- Executable: a\n- Executable: b\n")


class _Restarting:
    """A service that is away, or starts again, between two answers."""

    def __init__(self, *answers: str | Exception) -> None:
        self.answers = list(answers)

    def jobs(self, _filters: object, *, limit: int) -> dict[str, Any]:
        assert limit
        answer = self.answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return {"jobs": [{**ROW, "status": answer}], "next": None}

    def job(self, _job_id: int) -> dict[str, Any]:
        return {}

    def events(self, _filters: object, *, seconds: float) -> Iterator[tuple[str, None]]:
        if seconds:
            raise ServiceAway("a proxy holds the stream back")
        yield "0-0", None


AWAY = [ServiceAway("it cannot be reached"), ApiError("busy", status=503, code="unavailable", details={})]


def wait_by_program(service: _Restarting) -> Mapping[int, str]:
    client = Client("http://127.0.0.1:1", "token")
    client._service = service  # type: ignore[assignment]
    return client.wait(7)


def wait_by_command(service: _Restarting) -> Mapping[int, str]:
    return job.until_final(service, [7], timeout=None)  # type: ignore[arg-type]


@pytest.mark.parametrize("wait", [wait_by_program, wait_by_command])
def test_a_service_that_goes_away_is_waited_for(wait: Callable[[_Restarting], Mapping[int, str]]) -> None:
    assert wait(_Restarting("Running", *AWAY, "Done")) == {7: "Done"}
    for error in (*AWAY, ApiError("no", status=403, code="not_allowed", details={})):
        with pytest.raises(type(error)):
            wait(_Restarting(error, "Done"))
    with pytest.raises(ApiError):
        wait(_Restarting("Running", ApiError("no", status=401, code="not_authenticated", details={})))


def test_ctrl_c_in_a_change_names_what_was_done(
    answer: Callable[..., Answers], client: Client, capsys: pytest.CaptureFixture[str]
) -> None:
    told = "changed: 1-1000; may be changed or not: 1001-2000; not tried: 2001-2500"
    done = {"job_ids": [*range(1, 1001)], "refused": []}
    answer(done, KeyboardInterrupt())
    with pytest.raises(KeyboardInterrupt) as broken:
        client.kill(*range(1, 2501))
    assert broken.value.__notes__ == [told]
    answer(done, KeyboardInterrupt())
    with pytest.raises(SystemExit, match="130"):
        main(["job", "kill", "1-2500"])
    assert capsys.readouterr().err == f"pilotage: {told}\n"


#: A summary of jobs.
COUNTS = {
    "summary": [
        {"status": "Waiting", "owner": "ada", "count": 21},
        {"status": "Failed", "owner": "ada", "count": 3},
        {"status": "Running", "owner": "bob", "count": 1},
    ],
    "unknown": [],
}


@pytest.mark.parametrize(
    ("words", "typed", "expected"),
    [
        ([], "y\n", "Kill 22 jobs of 2 owners (21 Waiting, 1 Running)?"),
        ([], "\n", "Kill 22 jobs of 2 owners (21 Waiting, 1 Running)?"),
        (["--yes"], "", None),
    ],
)
@pytest.mark.usefixtures("client")
def test_changes_by_filters_ask_on_a_terminal(
    words: list[str],
    typed: str,
    expected: str | None,
    answer: Callable[..., Answers],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    killed = {"job_ids": [7], "refused": [], "next": None}
    service = answer(*([COUNTS] if expected else []), killed)
    monkeypatch.setattr(output, "is_interactive", lambda: True)
    monkeypatch.setattr("sys.stdin", io.StringIO(typed))
    is_wanted = typed != "\n"
    with pytest.raises(SystemExit, match="0" if is_wanted else "1"):
        main(["job", "kill", "--group", "scan", *words])
    assert (service.left == []) == is_wanted
    shown = capsys.readouterr()
    assert (expected or "") in shown.err + shown.out
    assert ("?" in shown.err + shown.out) == (expected is not None)


@pytest.mark.usefixtures("client")
def test_a_dry_run_counts_the_jobs_that_would_change_and_changes_none(
    answer: Callable[..., Answers], capsys: pytest.CaptureFixture[str]
) -> None:
    service = answer(COUNTS)
    with pytest.raises(SystemExit, match="0"):
        main(["job", "hold", "--group", "scan", "--dry-run"])
    assert capsys.readouterr().out == "Would hold 21 jobs of ada (21 Waiting)\n"
    assert [each[:2] for each in service.requested] == [("GET", "/jobs/summary")]


@pytest.mark.usefixtures("client")
def test_a_dry_run_with_values_names_what_is_refused_and_what_no_queue_would_run(
    answer: Callable[..., Answers], capsys: pytest.CaptureFixture[str]
) -> None:
    refused = [{"job_id": 7, "reason": "Priority: 99 is too large"}]
    edited = {"job_ids": [], "refused": refused, "next": None, "unknown": [], "warnings": ["job 8: no queue"]}
    service = answer(COUNTS, edited)
    with pytest.raises(SystemExit, match="1"):
        main(["job", "edit", "--group", "scan", "--set", "Priority=99", "--dry-run"])
    shown = capsys.readouterr()
    assert shown.out == "Would edit 21 jobs of ada (21 Waiting), but for 1 that it refuses\n"
    assert "job 7: Priority: 99 is too large" in shown.err
    assert "job 8: no queue" in shown.err
    body = {"job_group": "scan", "set": {"Priority": 99}, "dry_run": True}
    assert service.requested[1:] == [("POST", "/jobs/edit", body)]
