"""Idle pilots are told from memory that there is nothing, and nobody else is."""

import re
import uuid
from typing import Any

import httpx
import pytest

from taskqueue.db import database
from tests.support import databases, wait
from tests.support.service import Service, optimize

pytestmark = databases.BOTH

QUEUE = "LCG.A.org/ce1/long"
OFFER = {"Site": "LCG.A.org", "GridCE": "ce1", "Queue": "long", "CPUTime": 100_000}


@pytest.fixture
def looks(service: Service, monkeypatch: pytest.MonkeyPatch) -> list[object]:
    """The requests that were looked at, by the one thread that claims."""
    looked_at: list[object] = []
    submit = service.parts.claimer.submit

    def counted(wanted: Any) -> Any:
        looked_at.append(wanted)
        return submit(wanted)

    monkeypatch.setattr(service.parts.claimer, "submit", counted)
    return looked_at


def _ask(pilot: httpx.Client, **more: object) -> dict[str, Any]:
    answer = pilot.post("/api/v1/matcher/requestJob", json={**OFFER, **more})
    assert answer.status_code == 200, answer.text
    return answer.json()


def _submit(service: Service, job: dict[str, object] | None = None) -> int:
    return service.submit(job or {"Executable": "true"})[0]


def _nothing(pilot: httpx.Client, looks: list[object], **more: object) -> bool:
    """Ask until it is told from memory: the next look at the feed may just have been due."""

    def told() -> bool:
        before = len(looks)
        answer = _ask(pilot, **more)
        assert (answer["matches"], answer["reason"]) == ([], "no_task_queue")
        assert answer["retry_after"] > 0
        return len(looks) == before

    wait.until(told)
    return True


def test_an_idle_pilot_is_told_from_memory(service: Service, looks: list[object]):
    pilot = service.pilot(QUEUE)
    first = _ask(pilot, Colour="red")
    assert _nothing(pilot, looks, Colour="red")
    assert _ask(pilot, Colour="red") == first, "warnings too"
    assert "Colour" in first["warnings"][0]


def test_a_job_that_comes_is_matched_by_the_next_request(service: Service, looks: list[object]):
    for _ in range(3):
        pilot = service.pilot(QUEUE)  # one that holds no job
        assert _nothing(pilot, looks)
        job_id = _submit(service)
        assert [match["job_id"] for match in _ask(pilot)["matches"]] == [job_id]


def test_a_job_that_another_process_takes_in_is_matched_soon(service: Service, looks: list[object]):
    """By an engine of its own, that nobody rings for."""
    pilot = service.pilot(QUEUE)
    assert _nothing(pilot, looks)
    url = service.engine.url.render_as_string(hide_password=False)
    other = database.connect(url)
    ring = service.engine.get_execution_options()["notifier"]
    database.set_notifier(service.engine, lambda _topics: None)
    job_id = _submit(service)
    database.set_notifier(service.engine, ring)
    optimize(other, service.parts.live, [job_id])
    other.dispose()
    wait.until(lambda: [match["job_id"] for match in _ask(pilot)["matches"]] == [job_id])


def test_the_same_request_again_gets_its_jobs_although_there_are_no_more(
    service: Service, looks: list[object]
):
    pilot = service.pilot(QUEUE)
    job_id = _submit(service)
    given = _ask(pilot, request_id="r")["matches"]
    assert [match["job_id"] for match in given] == [job_id]
    assert _nothing(service.pilot(QUEUE), looks)
    assert _ask(pilot, request_id="r")["matches"] == given
    assert _ask(pilot, request_id="r", said_before=True)["matches"] == given


def test_a_request_that_is_named_for_the_first_time_is_told_from_memory(
    service: Service, looks: list[object]
):
    pilot = service.pilot(QUEUE)
    assert _nothing(pilot, looks, request_id="new", said_before=False)
    before = len(looks)
    _ask(pilot, request_id="new")
    assert len(looks) == before + 1


def test_a_ban_is_told_as_soon_as_there_is_a_job(service: Service, looks: list[object]):
    pilot = service.pilot(QUEUE)
    assert _nothing(pilot, looks)
    assert service.operator().post("/api/v1/sites/LCG.A.org/ban", json={"reason": "fire"}).is_success
    assert _nothing(pilot, looks)
    job_id = _submit(service)
    assert _ask(pilot)["reason"] == "banned"
    assert service.operator().post("/api/v1/sites/LCG.A.org/allow").is_success
    assert [match["job_id"] for match in _ask(pilot)["matches"]] == [job_id]


def test_a_queue_that_is_switched_off_is_told_at_once(
    service: Service, looks: list[object], config_text: str
):
    pilot = service.pilot(QUEUE)
    assert _nothing(pilot, looks)
    service.configure(config_text.replace("long: {CPUTime", "long: {Enabled: false, CPUTime", 1))
    assert _ask(pilot)["reason"] == "not_usable"


def test_who_may_not_ask_there_is_refused_whatever_is_remembered(service: Service, looks: list[object]):
    assert _nothing(service.pilot(QUEUE), looks)
    elsewhere = service.pilot()
    _ask(elsewhere, Queue="short")
    refused = elsewhere.post("/api/v1/matcher/requestJob", json=OFFER)
    assert refused.status_code == 403
    at_site = service.as_role("gateway", vo="cms", site="LCG.A.org")
    assert _nothing(at_site, looks)
    other_site = service.as_role("gateway", vo="cms", site="LCG.B.org")
    assert other_site.post("/api/v1/matcher/requestJob", json=OFFER).status_code == 403


def test_pilots_of_another_vo_get_their_jobs(service: Service, looks: list[object]):
    job = {"jobs": [{"Executable": "true"}]}
    assert service.user(vo="dune").post("/api/v1/jobs", json=job).status_code == 201
    _ask(service.pilot(QUEUE))
    assert _nothing(service.pilot(QUEUE), looks)
    assert len(_ask(service.pilot(QUEUE, vo="dune"))["matches"]) == 1


def test_a_new_pilot_is_noted_before_it_is_told_anything(service: Service, looks: list[object]):
    assert _nothing(service.pilot(QUEUE), looks)
    before = len(looks)
    _ask(service.pilot(QUEUE))
    assert len(looks) == before + 1


def test_a_refusal_from_memory_counts_as_any_other(service: Service, looks: list[object]):
    pilot = service.pilot(QUEUE)
    answers = [_ask(pilot)["reason"] for _ in range(5)]
    assert _nothing(pilot, looks)
    text = service.as_role("monitor").get("/metrics").text
    counted = re.findall(
        r'pilotage_match_refusals_total{reason="no_task_queue"} (\d+)'
        r'|pilotage_http_requests_total{method="POST",route="/matcher/requestJob",status="200"} (\d+)',
        text,
    )
    assert len({int(one or other) for one, other in counted}) == 1, "both count the same"
    assert len(counted) == 2
    assert int("".join(counted[0])) > len(answers)


def test_a_place_is_prepared_once(service: Service):
    pilot = service.pilot(QUEUE)
    before, after = [], []
    for found in (before, after):
        for _ in range(2):
            _ask(pilot, request_id=uuid.uuid4().hex)
        text = service.as_role("monitor").get("/metrics").text
        found += [
            float(re.findall(rf'pilotage_prepared_places_total{{result="{result}"}} (\S+)', text)[0])
            for result in ("miss", "hit")
        ]
    assert before[0] == after[0] > 0
    assert after[1] > before[1]
