"""The hand-over as pilots see it: one suite for the real service and for the pretended one."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any, Protocol

import httpx
import pytest

from taskqueue.db import database
from tests.support.fakes.lease_server import QUEUE, TOKEN, LeaseServer
from tests.support.service import Service, running

CONFIG = """
Resources:
  Sites:
    LCG.Test.org:
      CEs:
        ce01:
          Queues:
            long: {CPUTime: 100000, MaxRAM: 4000}
Registry:
  VO: {cms: {}}
"""
PLACE = {"Site": "LCG.Test.org", "GridCE": "ce01", "Queue": "long", "CPUTime": 100_000}


class World(Protocol):
    """A service with one pilot."""

    pilot: httpx.Client

    def add(self) -> int:
        """A new job without sandbox."""

    def kill(self, job_id: int) -> None: ...

    def close(self, job_id: int) -> None:
        """Take the job from its pilot."""

    def status(self, job_id: int) -> str: ...


class Pretended:
    def __init__(self, server: LeaseServer) -> None:
        self._server = server
        headers = {"Authorization": f"Bearer {TOKEN}"}
        self.pilot = httpx.Client(
            base_url=f"{server.url}/api/v1", headers=headers, trust_env=False, timeout=300
        )

    def add(self) -> int:
        return self._server.add({"Executable": "true"}).job_id

    def kill(self, job_id: int) -> None:
        self._server.kill(self._server.jobs[job_id])

    def close(self, job_id: int) -> None:
        self._server.close(self._server.jobs[job_id])

    def status(self, job_id: int) -> str:
        return self._server.jobs[job_id].status


class Real:
    def __init__(self, service: Service) -> None:
        self._user = service.user()
        self.pilot = service.pilot(QUEUE)
        self.pilot.base_url = f"{service.url}/api/v1"

    def add(self) -> int:
        answer = self._user.post("/api/v1/jobs", json={"jobs": [{"Executable": "true"}]})
        return int(answer.json()["job_ids"][0])

    def kill(self, job_id: int) -> None:
        assert self._user.post(f"/api/v1/jobs/{job_id}/kill").is_success

    def close(self, job_id: int) -> None:
        assert self._user.post(f"/api/v1/jobs/{job_id}/reschedule").is_success

    def status(self, job_id: int) -> str:
        return str(self._user.get(f"/api/v1/jobs/{job_id}").json()["status"])


@pytest.fixture(params=["pretended", "real"])
def world(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[World]:
    if request.param == "pretended":
        with LeaseServer() as server:
            pretended = Pretended(server)
            yield pretended
            pretended.pilot.close()
        return
    engine = database.connect(request.getfixturevalue("sqlite_url"))
    with running(engine, tmp_path, CONFIG) as service:
        yield Real(service)
    engine.dispose()


def take(world: World, request_id: str = "one") -> dict[str, Any]:
    answer = world.pilot.post("/matcher/requestJob", json={**PLACE, "count": 1, "request_id": request_id})
    assert answer.is_success, answer.text
    matches: list[dict[str, Any]] = answer.json()["matches"]
    return matches[0]


def say(world: World, match: dict[str, Any], what: str, **body: object) -> httpx.Response:
    return world.pilot.post(f"/leases/{match['lease']}/{what}", json=body)


def refused(answer: httpx.Response) -> tuple[int, str]:
    return answer.status_code, answer.json()["error"]["code"]


DONE = {"status": "Done", "exit_code": 0, "minor_status": "Execution Complete", "application_status": ""}
FAILED = {**DONE, "status": "Failed", "exit_code": 1}


def test_the_queue_and_its_pools_can_be_asked_for(world: World) -> None:
    parameters = world.pilot.get(f"/resources/queues/{QUEUE}").json()["parameters"]
    pools = world.pilot.post("/matcher/getSubmitPoolsForQueue", json={"queues": [QUEUE]}).json()

    assert parameters["MaxRAM"]["value"] == 4000
    assert isinstance(pools["pools"][QUEUE], list)


def test_an_unknown_queue_is_told_with_what_was_meant(world: World) -> None:
    answer = world.pilot.get(f"/resources/queues/{QUEUE}x")

    assert answer.status_code == 404
    assert QUEUE in answer.json()["error"]["message"]


def test_a_bad_token_is_401(world: World) -> None:
    answer = world.pilot.post("/matcher/requestJob", json=PLACE, headers={"Authorization": "Bearer x.y.z"})

    assert answer.status_code == 401


def test_nothing_to_do_has_a_reason_and_a_time(world: World) -> None:
    answer = world.pilot.post("/matcher/requestJob", json={**PLACE, "count": 1, "request_id": "a"}).json()

    assert answer["matches"] == []
    assert answer["reason"] == "no_task_queue"
    assert answer["retry_after"] >= 0


def test_the_same_request_gets_the_same_job(world: World) -> None:
    world.add()
    world.add()

    assert take(world, "a")["lease"] == take(world, "a")["lease"] != take(world, "b")["lease"]


def test_a_job_without_sandbox_says_so(world: World) -> None:
    world.add()

    answer = world.pilot.get(f"/leases/{take(world)['lease']}/sandbox")

    assert refused(answer) == (404, "blob_not_found")


def test_a_job_goes_from_matched_to_running_to_done(world: World) -> None:
    job_id = world.add()
    match = take(world)
    assert world.status(job_id) == "Matched"

    started = say(world, match, "start", host="here", pilot=1)
    assert started.json()["commands"] == []
    assert world.status(job_id) == "Running"

    beaten = say(world, match, "heartbeat", progress="half", output_tail="text", memory_mb=1)
    assert beaten.json()["commands"] == []
    stored = world.pilot.put(f"/leases/{match['lease']}/output", content=b"archive")
    assert stored.is_success, stored.text
    assert say(world, match, "finish", **DONE).json()["status"] == "Done"
    assert world.status(job_id) == "Done"


def test_a_start_again_is_answered_again(world: World) -> None:
    world.add()
    match = take(world)

    assert (
        say(world, match, "start").json()["commands"] == say(world, match, "start").json()["commands"] == []
    )


def test_a_finish_again_gets_the_stored_answer_and_another_is_refused(world: World) -> None:
    world.add()
    match = take(world)
    say(world, match, "start")

    first = say(world, match, "finish", **DONE)
    assert say(world, match, "finish", **DONE).json() == first.json()
    assert refused(say(world, match, "finish", **FAILED)) == (409, "stale_lease")


def test_a_job_that_was_never_started_does_not_finish(world: World) -> None:
    world.add()

    assert say(world, take(world), "finish", **DONE).status_code == 409


def test_a_release_before_the_start_lets_the_job_wait(world: World) -> None:
    job_id = world.add()
    match = take(world)

    first = say(world, match, "release", reason="a signal ended the pilot")
    assert first.json()["status"] == world.status(job_id) == "Waiting"
    assert say(world, match, "release", reason="a signal ended the pilot").json() == first.json()
    assert refused(say(world, match, "start")) == (409, "stale_lease")


def test_a_release_after_the_start_reschedules_the_job(world: World) -> None:
    world.add()
    match = take(world)
    say(world, match, "start")

    assert say(world, match, "release", reason="why").json()["status"] == "Rescheduled"


@pytest.mark.parametrize("what", ["start", "heartbeat", "finish", "release"])
def test_nothing_is_accepted_for_an_attempt_that_was_closed(world: World, what: str) -> None:
    job_id = world.add()
    match = take(world)
    say(world, match, "start")
    world.close(job_id)

    body = DONE if what == "finish" else {}
    assert refused(say(world, match, what, **body)) == (409, "stale_lease")


def test_output_of_a_closed_attempt_is_not_stored(world: World) -> None:
    job_id = world.add()
    match = take(world)
    say(world, match, "start")
    world.close(job_id)

    answer = world.pilot.put(f"/leases/{match['lease']}/output", content=b"archive")

    assert refused(answer) == (409, "stale_lease")


def test_a_lease_that_never_was_is_404(world: World) -> None:
    assert say(world, {"lease": "nonsense"}, "heartbeat").status_code == 404


def test_a_killed_job_tells_its_pilot_and_stays_killed(world: World) -> None:
    job_id = world.add()
    match = take(world)
    say(world, match, "start")
    world.kill(job_id)

    assert say(world, match, "heartbeat").json()["commands"] == ["kill"]
    assert world.pilot.put(f"/leases/{match['lease']}/output", content=b"partial").is_success
    assert say(world, match, "finish", **FAILED).json()["status"] == "Killed"
    assert world.status(job_id) == "Killed"


def test_a_job_killed_before_its_start_tells_it_at_the_start(world: World) -> None:
    job_id = world.add()
    match = take(world)
    world.kill(job_id)

    assert say(world, match, "start").json()["commands"] == ["kill"]
    assert say(world, match, "finish", **FAILED).json()["status"] == "Killed"
