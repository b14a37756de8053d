"""The door in front of former services that hang, fail, or are called by others."""

import asyncio
import ssl
import threading
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx
import pytest
from sqlalchemy import Engine

from pilotage.plugins.dirac import door_guard, former, jencode, routing
from pilotage.plugins.dirac.former import FormerServices
from pilotage.plugins.dirac.jencode import Form, Result
from pilotage.service import deadline
from pilotage.service.auth import access
from pilotage.service.http_errors import SenderSilent
from pilotage.service.routing import StrictRequest
from tests.plugins.dirac.test_app import (
    JDL,
    MANAGER,
    MONITORING,
    UPDATE,
    asking_async,
    chains,
    opened_door,
    value,
)

__all__ = ["chains"]

AskDoor = Callable[..., Awaitable[httpx.Response]]
#: Job 1 counts as one of the former services.
FIRST = 2
VIA = {"Via": f"1.1 {former.VIA}"}
AS_ADA = ["/DC=test/CN=ada", "lhcb_user"]


@pytest.fixture
def door(engine: Engine, tmp_path: Path, chains: dict[str, tuple[str, ...]]) -> Iterator[AskDoor]:
    urls = [f"https://dirac.test:8443{path}" for path in sorted(routing.SHARED)]
    services = FormerServices(urls, first_job_id=FIRST, make_context=ssl.create_default_context)
    with opened_door(engine, tmp_path, services) as door:
        ask = asking_async(door, chains)
        yield ask


async def _submit_here(door: AskDoor) -> Any:
    """The second job, as a host submits it that another door has sent it to."""
    for _ in range(2):
        answer = await door("rms", MANAGER, "submitJob", JDL, credentials=AS_ADA, headers=VIA)
    return value(answer)


async def _fail(*_: object) -> Result:
    raise EOFError


def test_while_former_services_hang_calls_about_jobs_here_are_answered(
    door: AskDoor, monkeypatch: pytest.MonkeyPatch
):
    async def check() -> None:
        job_id = await _submit_here(door)
        ended = asyncio.Event()

        async def hang(*_: object) -> Result:
            await ended.wait()
            return jencode.ok({})

        monkeypatch.setattr(former, "_call_https", hang)
        calls = [
            asyncio.create_task(door("ada", UPDATE, "sendHeartBeat", 1, {}, {}))
            for _ in range(former.CALLS.of_one + 1)
        ]
        [refused], _ = await asyncio.wait(calls, timeout=300, return_when=asyncio.FIRST_COMPLETED)
        assert refused.result().status_code == 503
        assert "wait for the former services" in refused.result().text
        answer = await asyncio.wait_for(door("ada", MONITORING, "getJobsStatus", [job_id]), 300)
        assert list(value(answer)) == [str(job_id)]
        ended.set()
        answers = await asyncio.gather(*calls)
        assert sorted(each.status_code for each in answers) == [200] * former.CALLS.of_one + [503]

    asyncio.run(check())


def test_so_many_sandboxes_are_worked_on_at_once(
    engine: Engine, tmp_path: Path, chains: dict[str, tuple[str, ...]], monkeypatch: pytest.MonkeyPatch
):
    at_work, ended, read_form = list[int](), threading.Event(), jencode.read_form

    def wait(content: bytes) -> Form:
        at_work.append(len(content))
        assert ended.wait(300)
        return read_form(content)

    async def check(door: AskDoor) -> None:
        path = "/WorkloadManagement/SandboxStore"
        calls = [
            asyncio.create_task(door(peer, path, "ping", address=f"10.0.0.{number}"))
            for peer in ("ada", "bea", "pia")
            for number in range(6)
        ]
        async with asyncio.timeout(300):
            while len(at_work) < door_guard.SANDBOXES.of_all:
                await asyncio.sleep(0.01)
        await asyncio.wait(calls, timeout=0.1)
        assert len(at_work) == door_guard.SANDBOXES.of_all
        ended.set()
        assert {each.status_code for each in await asyncio.gather(*calls)} == {200}

    with opened_door(engine, tmp_path) as app:
        monkeypatch.setattr("pilotage.plugins.dirac.app.jencode.read_form", wait)
        asyncio.run(check(asking_async(app, chains)))


def test_slow_sandboxes_of_all_others_keep_none_waiting(door: AskDoor, monkeypatch: pytest.MonkeyPatch):
    async def check() -> None:
        begun, ended = [], asyncio.Event()

        async def read(request: StrictRequest, *_: object) -> None:
            begun.append(1)
            if access.address(request) != "10.1.1.1":
                await ended.wait()
            raise SenderSilent

        monkeypatch.setattr("pilotage.service.routing.StrictRequest.read", read)
        path = "/WorkloadManagement/SandboxStore"
        slow = [
            asyncio.create_task(door(peer, path, "ping", address=f"10.0.0.{number}"))
            for peer in ("ada", "bea", "pia")
            for number in range(6)
        ]
        async with asyncio.timeout(300):
            while len(begun) < len(slow):
                await asyncio.sleep(0.01)
            assert (await door("bea", path, "ping", address="10.1.1.1")).status_code == 408
        ended.set()
        await asyncio.gather(*slow)

    asyncio.run(check())


def test_forms_that_wait_are_bounded_by_their_bytes_and_cost_other_vos_nothing(
    engine: Engine,
    tmp_path: Path,
    chains: dict[str, tuple[str, ...]],
    monkeypatch: pytest.MonkeyPatch,
):
    monkeypatch.setattr(door_guard, "FORMS", replace(door_guard.FORMS, of_vo=5 << 20))
    at_work, ended, read_form = list[int](), threading.Event(), jencode.read_form

    def wait(content: bytes) -> Form:
        at_work.append(len(content))
        assert ended.wait(300)
        return read_form(content)

    async def check(door: AskDoor) -> None:
        large = b"x" * (1 << 20)
        calls = [
            asyncio.create_task(door(peer, MANAGER, body=large, address=f"10.0.0.{number}"))
            for peer, number in [("ada", 1), ("ada", 2), ("pia", 1), ("pia", 2), ("bob", 1)]
        ]
        async with asyncio.timeout(300):
            while len(at_work) < len(calls):
                await asyncio.sleep(0.01)
            refused = await door("ada", MANAGER, body=large)
            assert (refused.status_code, "too many large requests" in refused.text) == (429, True)
            other = asyncio.create_task(door("bea", MANAGER, body=large))
            while len(at_work) < len(calls) + 1:
                await asyncio.sleep(0.01)
        ended.set()
        assert {each.status_code for each in await asyncio.gather(*calls, other)} == {200}
        assert (await door("ada", MANAGER, body=large)).status_code == 200

    with opened_door(engine, tmp_path) as app:
        monkeypatch.setattr("pilotage.plugins.dirac.app.jencode.read_form", wait)
        asyncio.run(check(asking_async(app, chains)))


def test_a_submission_that_may_have_been_accepted_is_not_sent_to_the_next_url(
    door: AskDoor, monkeypatch: pytest.MonkeyPatch
):
    async def check() -> None:
        monkeypatch.setattr(former, "_call_https", _fail)
        answer = await door("ada", MANAGER, "submitJob", JDL)
        assert answer.status_code == 200
        assert "look before you repeat" in answer.json()["Message"]

        async def miss(*_: object) -> Result:
            raise former.NotReached

        monkeypatch.setattr(former, "_call_https", miss)
        assert (await door("ada", MANAGER, "submitJob", JDL)).status_code == 503

    asyncio.run(check())


def test_former_services_have_their_own_time(door: AskDoor, monkeypatch: pytest.MonkeyPatch):
    under_way = False

    def measure_left(request: deadline._Watched) -> float:
        """The time of the service is over as soon as the former services are asked."""
        return 0.0 if under_way and request._since is not None else 0.01

    async def answer_late(*_: object) -> Result:
        nonlocal under_way
        under_way = True
        await asyncio.sleep(0.5)
        under_way = False
        return jencode.ok(7)

    monkeypatch.setattr(deadline._Watched, "seconds_left", measure_left)
    monkeypatch.setattr(former, "_call_https", answer_late)

    async def check() -> None:
        assert value(await door("ada", MANAGER, "submitJob", JDL)) == 7

    asyncio.run(check())


def test_only_hosts_that_act_for_others_keep_a_call_from_being_passed_on(
    door: AskDoor, monkeypatch: pytest.MonkeyPatch
):
    async def submit_there(*_: object) -> Result:
        return jencode.ok(1)

    async def check() -> None:
        monkeypatch.setattr(former, "_call_https", submit_there)
        assert value(await door("ada", MANAGER, "submitJob", JDL, headers=VIA)) == 1
        monkeypatch.setattr(former, "_call_https", _fail)
        value(await door("rms", MANAGER, "submitJob", JDL, headers=VIA, credentials=AS_ADA))

    asyncio.run(check())
