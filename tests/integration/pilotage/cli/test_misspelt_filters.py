"""A misspelt filter is no success with nothing to do, by any verb or client; a good one without jobs is."""

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

from pilotage import ApiError, AsyncClient, Client, PilotageError
from pilotage.client.api import ServiceClient
from tests.support.commands import Run, run, send_to
from tests.support.service import Service

__all__ = ["run"]


#: Verbs of `pilotage job`, and methods of both clients, that take filters.
COMMANDS = ("wait", "list", "kill", "delete", "reschedule", "reset", "resubmit")
METHODS = ("jobs", "count", "kill", "delete", "reschedule", "reset", "resubmit")
#: Option, name by HTTP, a misspelt value, what is said of it, and a good value of which no job is Done.
FILTERS = (
    ("--group", "job_group", "mssm", "no job has the group mssm, did you mean mssm-1?", "mssm-1"),
    ("--site", "site", "LCG.A.orgg", "no job has the site LCG.A.orgg, did you mean LCG.A.org?", "LCG.A.org"),
    ("--vo", "vo", "cmss", "no job has the VO cmss, did you mean cms?", "CMS"),
    ("--owner", "owner", "aday", "no job has the owner aday, did you mean ada?", "ada"),
    ("--name", "job_name", "point1", "no job has the name point1, did you mean point?", "point"),
    ("--pool", "pool", "0" * 12, "no job has the pool 000000000000", None),
)  # fmt: skip
IDS = [each[1] for each in FILTERS]


@pytest.fixture
def service(service: Service) -> Service:
    described = {"Executable": "x", "JobGroup": "mssm-1", "JobName": "point"}
    assert service.user().post("/api/v1/jobs", json={"jobs": [described] * 2}).status_code == 201
    theirs = {**described, "JobGroup": "secret-scan"}
    assert service.user("bob").post("/api/v1/jobs", json={"jobs": [theirs]}).status_code == 201
    return service


@pytest.fixture(autouse=True)
def _as_ada(service: Service, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    send_to(service, tmp_path / "nobody", monkeypatch, "user", vo="cms", user="ada")


def _call(client: Client | AsyncClient, method: str, **filters: str) -> list[Any]:
    async def list_jobs() -> list[Any]:
        if method == "jobs":
            return [each async for each in client.jobs(**filters)]
        found: list[Any] = await getattr(client, method)(*by, **filters)
        return found

    by = ("status",) if method == "count" else ()
    if isinstance(client, AsyncClient):
        return asyncio.run(list_jobs())
    return list(getattr(client, method)(*by, **filters))


@pytest.mark.parametrize(("option", "name", "misspelt", "said", "good"), FILTERS, ids=IDS)
def test_a_misspelt_value_is_refused_by_each_verb(
    run: Run, service: Service, option: str, name: str, misspelt: str, said: str, good: str | None
) -> None:
    for command in (*COMMANDS, "list --by status"):
        status, _, error = run("job", *command.split(), option, misspelt)
        assert (status, error) == (1, f"pilotage: {said}\n"), command
        if good is not None:
            status, _, error = run("job", *command.split(), option, good, "--status", "Done")
            assert (status, error) == (1 if command == "wait" else 0, ""), command
    token = service.token("user", vo="cms", user="ada")
    for client in (Client(service.url, token), AsyncClient(service.url, token)):
        for method in METHODS:
            with pytest.raises(ApiError) as refused:
                _call(client, method, **{name: misspelt})
            assert (str(refused.value), refused.value.code, refused.value.status) == (
                said,
                "unknown_value",
                404,
            )
            if good is not None:
                assert _call(client, method, **{name: good}, status="Done") == []  # fmt: skip
        blocking = client if isinstance(client, Client) else client.blocking
        blocking.close()


def test_names_of_others_are_neither_known_nor_suggested(run: Run) -> None:
    for value in ("secret-scan", "secret-scn"):
        status, _, error = run("job", "list", "--group", value)
        assert (status, error) == (1, f"pilotage: no job has the group {value}\n")
    assert run("job", "list", "--owner", "bobb")[2] == "pilotage: no job has the owner bobb\n"
    assert run("job", "list", "--vo", "dune")[2] == "pilotage: no job has the VO dune\n"


def test_one_of_several_values_may_be_misspelt(run: Run, service: Service) -> None:
    status, _, error = run("job", "kill", "--vo", "cms,dunee")
    assert status == 1
    assert error == "pilotage: no job has the VO dunee; jobs with the other values were changed: 1-2\n"
    assert [each["status"] for each in json.loads(run("job", "list", "--json")[1])["jobs"]] == ["Killed"] * 2


def test_many_ids_are_few_requests_with_a_reason_for_each_that_stays(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    sent: list[tuple[str, str]] = []
    call = ServiceClient._call

    def count(self: ServiceClient, method: str, path: str, **request: Any) -> Any:
        sent.append((method, path))
        return call(self, method, path, **request)

    monkeypatch.setattr(ServiceClient, "_call", count)
    status, out, error = run("job", "kill", "1-1500")
    assert (status, out.split(":")[0]) == (1, "Killed 2")
    assert sent == [("POST", "/jobs/kill")] * 2
    assert error.splitlines()[0] == "pilotage: job 3 does not exist"
    assert len(error.splitlines()) == 1498


def test_nothing_to_wait_for_is_no_success(run: Run, service: Service) -> None:
    assert run("job", "wait", "--group", "mssm-1", "--status", "Done")[:2] == (1, "no jobs\n")
    with Client(service.url, "x") as client, pytest.raises(PilotageError, match="at least one job id"):
        client.wait()


def test_a_site_admin_counts_and_is_told_nothing_of_persons(service: Service) -> None:
    token = service.token("site_admin", site="LCG.A.org", user="eva")
    with Client(service.url, token) as client:
        with pytest.raises(ApiError, match="no job has the VO cmss"):
            client.count("status", vo="cmss")
        with pytest.raises(ApiError) as refused:
            client.count("status", job_group="mssm")
        assert refused.value.status == 403


@pytest.mark.parametrize(
    ("option", "value", "message"),
    [
        ("--exit-code", "x,3", "'x' is not allowed, allowed is a whole number or 'none'"),
        ("--exit-code", "0-100000", "'0-100000' is not allowed, a range has 1 to 1,000 numbers"),
        ("--exit-code", "0-999,1-2", "'1-2' is not allowed, a range has 1 to 1,000 numbers"),
        ("--exit-code", "99999999999", "allowed is at most 2147483647 or 'none'"),
        ("--status", "Wating", "did you mean Waiting?"),
        ("--local-status", "fine", "allowed is 'unsubmitted', 'active', 'done' or 'error'"),
        ("--since", "x" * 50, "allowed is a text of at most 40 characters"),
        ("--since", "soon", "is not a time: 2026-03-28"),
    ],
)
def test_a_value_that_no_job_can_have_is_refused_with_its_option(
    run: Run, option: str, value: str, message: str
) -> None:
    for command in COMMANDS:
        code, out, err = run("job", command, option, value)
        assert (code, out) == (2, ""), command
        assert err.startswith(f"pilotage: {option}: "), err
        assert message in err
        assert len(err.splitlines()) == 1, "one fault for one value"
