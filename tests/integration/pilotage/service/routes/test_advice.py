"""What is stored is answered, whether or not the advice that goes with the answer can be computed."""

import importlib
import inspect
import pkgutil
import threading
from collections.abc import Iterator
from typing import Any

import httpx
import pytest
from sqlalchemy import Connection

import matcher.explain
from cs_config.tree.configuration import Configuration
from cs_config.versions import store
from cs_config.versions.store import LiveConfiguration
from matcher.explain import explanation
from pilotage.service import configuring
from pilotage.service.advice import Advisor
from tests.integration.pilotage.service.pages.test_access import session
from tests.support.service import Service

STUCK = {"Executable": "/bin/true", "Requirements": {"Memory": 64_000}}
#: One VO's queues with the values true and 1, which are equal keys in Python.
TRUE_AND_ONE = """
Resources:
  Sites:
    A.x: {CEs: {ce: {Queues: {q: {Level: true, Memory: 1000}}}}}
    B.x: {CEs: {ce: {Queues: {q: {Level: 1, Memory: 4000}}}}}
Registry: {VO: {cms: {}}, Groups: {cms_user: {VO: cms}}}
"""
QUEUE = "Resources/Sites/LCG.A.org/CEs/ce1/Queues/long"


def raise_always(*_: object, **__: object) -> None:
    raise ArithmeticError("a defect of the advice")


@pytest.fixture
def _nothing_that_follows_works(service: Service, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every function of explanations fails, and so does all else that follows a commit."""
    for each in pkgutil.iter_modules(matcher.explain.__path__):
        module = importlib.import_module(f"matcher.explain.{each.name}")
        for name, function in inspect.getmembers(module, inspect.isfunction):
            if function.__module__ == module.__name__:
                monkeypatch.setattr(module, name, raise_always)
    refresh, seen = LiveConfiguration.refresh, {service.parts.live.current.version}

    def refresh_at_second_try(live: LiveConfiguration, conn: Connection, *stored: Configuration) -> bool:
        newest = store.current_version(conn)
        if newest not in seen:
            seen.add(newest)
            raise_always()
        return refresh(live, conn, *stored)

    monkeypatch.setattr(LiveConfiguration, "refresh", refresh_at_second_try)
    monkeypatch.setattr(configuring, "convert_warnings", raise_always)
    service.engine.update_execution_options(notifier=raise_always)
    object.__setattr__(service.parts, "notify_optimizers", raise_always)


def stored(service: Service) -> list[dict[str, Any]]:
    jobs: list[dict[str, Any]] = service.operator().get("/api/v1/jobs").json()["jobs"]
    return jobs


@pytest.mark.usefixtures("_nothing_that_follows_works")
def test_jobs_are_stored_once_and_their_ids_answered_without_the_advice(service: Service):
    user = service.user()
    for body in ({"jobs": [STUCK]}, {"jdl": '[Executable="/bin/true"; Requirements=[Memory=64000]]'}):
        answer = user.post("/api/v1/jobs", json=body)
        assert (answer.status_code, answer.json()["warnings"]) == (201, []), answer.text
        [job_id] = answer.json()["job_ids"]
        assert stored(service)[0]["job_id"] == job_id
    copy = user.post(f"/api/v1/jobs/{job_id}/resubmit", headers={"Idempotency-Key": "once"})
    again = user.post(f"/api/v1/jobs/{job_id}/resubmit", headers={"Idempotency-Key": "once"})
    assert (copy.status_code, again.json()["job_ids"]) == (201, copy.json()["job_ids"])
    with session(service, "user", vo="cms", user="ada") as browser:
        jdl = 'Executable = "/bin/true"; Requirements = [Memory = 64000];'
        shown = browser.post("/jobs/new", data={"jdl": jdl, "do": "submit", "key": "0123abcd"})
    assert shown.status_code == 303, shown.text
    assert len(stored(service)) == 4
    [job_id] = user.post("/api/v1/jobs", json={"jobs": [{"Executable": "/bin/true"}]}).json()["job_ids"]
    rescheduled = user.post(f"/api/v1/jobs/{job_id}/reschedule")
    assert (rescheduled.status_code, rescheduled.json()["status"]) == (200, "Rescheduled")


@pytest.mark.usefixtures("_nothing_that_follows_works")
def test_a_stored_change_of_the_configuration_is_answered_with_its_version(
    service: Service, caplog: pytest.LogCaptureFixture
):
    operator = service.operator()
    for version, (path, change) in enumerate(CHANGES, start=2):
        answer = change(operator, version - 1)
        assert answer.status_code == 200, (path, answer.text)
        assert answer.json()["version"] == version
    with session(service, "operator", user="root") as browser:
        form = {"section": QUEUE, "way": "text", "text": "CPUTime: 77", "version": str(len(CHANGES) + 1)}
        applied = browser.post("/configuration/apply", data=form)
    assert (applied.status_code, applied.headers["location"].split("=")[-1]) == (303, str(len(CHANGES) + 2))
    assert "a defect of the advice" in caplog.text


def _edit(client: httpx.Client, version: int) -> httpx.Response:
    body = {"set": {f"{QUEUE}/Colour": "red"}}
    return client.patch("/api/v1/config", json=body, headers={"If-Match": str(version)})


def _replace(client: httpx.Client, version: int) -> httpx.Response:
    body = {"text": f"{TRUE_AND_ONE}\n# {version}"}
    return client.put("/api/v1/config", json=body, headers={"If-Match": str(version)})


def _roll_back(client: httpx.Client, version: int) -> httpx.Response:
    return client.post("/api/v1/config/rollback", json={"version": version - 1})


CHANGES = [
    ("edit", _edit),
    ("drain", lambda client, _: client.post("/api/v1/resources/queues/LCG.A.org/ce1/long/drain")),
    ("resume", lambda client, _: client.post("/api/v1/resources/queues/LCG.A.org/ce1/long/resume")),
    ("replace", _replace),
    ("rollback", _roll_back),
]


@pytest.fixture
def _advice_never_ends(service: Service, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    may_end = threading.Event()
    monkeypatch.setattr(explanation, "suggest_changes", lambda *_, **__: may_end.wait() and [])
    object.__setattr__(service.parts, "advisor", Advisor(seconds=0.05))
    yield
    may_end.set()


@pytest.mark.usefixtures("_advice_never_ends")
def test_no_answer_waits_for_advice_that_takes_too_long(service: Service):
    user = service.user()
    for number in range(1, 4):  # the first is still at work when the next are wanted
        answer = user.post("/api/v1/jobs", json={"jobs": [STUCK]})
        assert (answer.status_code, answer.json()["warnings"]) == (201, []), answer.text
        assert len(stored(service)) == number


def test_queues_that_have_true_and_one_are_told_apart(service: Service):
    service.configure(TRUE_AND_ONE)
    user, job = service.user(), {"Executable": "/bin/true", "Requirements": {"Level": "z", "Memory": 2000}}
    explained = user.post("/api/v1/explain", json={"jobs": [job]})
    assert explained.status_code == 200, explained.text
    assert [each["change"] for each in explained.json()["changes"]] == [
        "allow Level 1 as well",
        "leave out Level",
    ]
    answer = user.post("/api/v1/jobs", json={"jobs": [job]})
    assert answer.status_code == 201, answer.text
    [job_id] = answer.json()["job_ids"]
    assert "allow Level 1 as well" in answer.json()["warnings"][0]
    assert user.get(f"/api/v1/jobs/{job_id}/explain").status_code == 200
