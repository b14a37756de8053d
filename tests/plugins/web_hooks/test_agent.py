"""What VOs want to be notified of is sent once it has happened, in order, repeatedly, and within bounds."""

import json
import threading
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from types import SimpleNamespace
from typing import Any

import pytest
from sqlalchemy import Engine, select, update

from agents import leader, pools
from agents.retention import retention
from agents.retention.retention import RetentionResult
from cs_config.options import bounds
from cs_config.tree.configuration import Configuration
from optimizers.chain import batch
from pilotage import extensions
from pilotage.plugins.web_hooks import agent, stored_hooks
from pilotage.plugins.web_hooks.agent import WebHooksResult, WebHooksState
from pilotage.plugins.web_hooks.messages import Send, SendResult
from pilotage.plugins.web_hooks.stored_hooks import Delivery, Event, WebHook, WebHookNotFound
from requirements.errors import InvalidRequest
from taskqueue.db import database
from taskqueue.jobs import control
from taskqueue.schema.tables import log_readers
from taskqueue.schema.tables import web_hooks as hook_table
from tests.support import databases
from tests.support.factories import accounted_jobs, stored_rows, submitted_jobs

MINUTE = timedelta(minutes=1)
DAY = timedelta(days=1)
EVERYTHING = tuple(stored_hooks.EVENTS)


@dataclass
class Receiver:
    """Stands for all receivers, and keeps what it accepts."""

    answers: list[int] = field(default_factory=list)  #: of the next tries; then 204
    got: list[tuple[str, dict[str, Any], dict[str, str]]] = field(default_factory=list)

    def post(self, url: str, body: bytes, headers: Mapping[str, str]) -> SendResult:
        status = self.answers.pop(0) if self.answers else 204
        self.got.append((url, json.loads(body), dict(headers)))
        return SendResult(answer=str(status), is_delivered=status < 300)

    @property
    def ids(self) -> list[str]:
        return [headers["webhook-id"] for *_, headers in self.got]

    def jobs(self, url: str = "https://a.example/") -> list[int]:
        return [
            each["job_id"] for at, body, _ in self.got if at == url for each in body["data"].get("jobs", ())
        ]


@pytest.fixture
def receiver() -> Receiver:
    return Receiver()


def make(engine: Engine, now: datetime, **about: Any) -> WebHook:
    values = {"vo": "lhcb", "name": "a", "url": "https://a.example/", "events": EVERYTHING, **about}
    with database.writing(engine) as conn:
        return stored_hooks.create(conn, **values, created_by="ada", most=10, now=now)


def get(engine: Engine, hook: WebHook) -> tuple[WebHook, list[Delivery]]:
    """The hook as it is now, and its deliveries, newest first."""
    with database.reading(engine) as conn:
        return stored_hooks.get(conn, hook.hook_id), stored_hooks.list_deliveries(conn, hook.hook_id, most=99)


def retain(engine: Engine, now: datetime) -> RetentionResult | None:
    """A cycle of the retention agent, with the readers of the log as the process finds them."""
    readers = extensions.find_log_readers()
    return retention.cycle(engine, submitted_jobs.grid(), now=now, holder="a", log_readers=readers)


def cycle(
    engine: Engine,
    now: datetime,
    receiver: Receiver,
    config: Configuration | None = None,
    memory: WebHooksState | None = None,
) -> WebHooksResult:
    result = agent.cycle(
        engine,
        config or submitted_jobs.grid(),
        now=now,
        holder="test",
        memory=memory or WebHooksState(),
        send=receiver.post,
    )
    assert result is not None
    return result


def end_jobs(engine: Engine, now: datetime, count: int = 1, **about: str) -> list[int]:
    with database.writing(engine) as conn:
        ids = accounted_jobs.put(conn, now, count)
        for job_id in ids:
            if about:
                stored_rows.force(conn, job_id, **about)
        control.kill_jobs(conn, ids, source="test", now=now)
    return ids


def test_jobs_that_end_are_reported_once_to_the_hooks_of_their_vo(
    engine: Engine, now: datetime, receiver: Receiver
) -> None:
    old = end_jobs(engine, now - MINUTE)
    hook = make(engine, now)
    make(engine, now, vo="cms", name="other", url="https://cms.example/")
    make(engine, now, name="group", url="https://group.example/", job_group="scan")
    make(engine, now, name="owner", url="https://owner.example/", owner="bob", events=[Event.JOB_ENDED])
    ids = end_jobs(engine, now, 2)
    scan = end_jobs(engine, now, job_group="scan", owner="bob")
    assert cycle(engine, now + MINUTE, receiver) == WebHooksResult(delivered=3)
    assert receiver.jobs() == [*ids, *scan], f"without {old}, which ended before the hook was made"
    assert receiver.jobs("https://group.example/") == receiver.jobs("https://owner.example/") == scan
    [(_, body, _)] = [each for each in receiver.got if each[0] == hook.url]
    assert (body["type"], body["data"]["vo"], body["data"]["hook"]) == ("job.ended", "lhcb", "a")
    assert body["data"]["jobs"][0] == {
        "job_id": ids[0],
        "at": now.isoformat(),
        "status": "Killed",
        "minor_status": "Marked for termination",
        "vo": "lhcb",
        "owner": "alice",
        "owner_group": "lhcb_user",
        "job_name": "",
        "job_group": "",
        "site": "ANY",
    }
    [delivery] = get(engine, hook)[1]
    assert (delivery.state, delivery.answer, delivery.tries, delivery.body) == ("delivered", "204", 1, "")
    assert not cycle(engine, now + 2 * MINUTE, receiver)


def test_what_fails_is_sent_again_in_order_and_later_each_time(
    engine: Engine, now: datetime, receiver: Receiver
) -> None:
    hook = make(engine, now)
    first, second = end_jobs(engine, now), None
    receiver.answers = [500, 503]
    assert cycle(engine, now, receiver) == WebHooksResult(failed=1)
    second = end_jobs(engine, now)
    assert not cycle(engine, now + timedelta(seconds=29), receiver), "not before its time"
    assert cycle(engine, now + timedelta(seconds=30), receiver) == WebHooksResult(failed=1)
    known, deliveries = get(engine, hook)
    assert (known.failures, known.next_try_at, known.waiting) == (2, now + timedelta(seconds=90), 2)
    assert [(each.state, each.tries, each.answer) for each in deliveries] == [
        ("waiting", 0, ""),
        ("waiting", 2, "503"),
    ]
    assert cycle(engine, now + timedelta(seconds=90), receiver) == WebHooksResult(delivered=2)
    assert receiver.jobs() == [*first, *first, *first, *second]
    assert len(set(receiver.ids)) == 2, "a repetition has the id of the first try"
    assert get(engine, hook)[0].failures == 0


def test_a_delivery_is_given_up_after_a_day(engine: Engine, now: datetime, receiver: Receiver) -> None:
    hook = make(engine, now)
    end_jobs(engine, now)
    receiver.answers = [410] * 3
    for when in (now, now + DAY - MINUTE, now + DAY + 2 * MINUTE * 60):
        cycle(engine, when, receiver)
    [delivery] = get(engine, hook)[1]
    assert (delivery.state, delivery.tries, delivery.answer, delivery.body) == ("given up", 3, "410", "")
    known, _ = get(engine, hook)
    assert (known.failures, known.next_try_at) == (0, None), "the next one is tried at once"


def test_a_receiver_that_is_away_costs_a_bounded_number_of_rows(
    engine: Engine, now: datetime, receiver: Receiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bounds, "HOOK_DELIVERIES", 2)
    monkeypatch.setattr(bounds, "HOOK_JOBS", 2)
    hook = make(engine, now)
    end_jobs(engine, now, 7)
    receiver.answers = [500]
    cycle(engine, now, receiver)
    known, deliveries = get(engine, hook)
    assert (known.dropped, known.waiting, len(deliveries)) == (2, 2, 2)
    assert len(receiver.jobs()) == 2, "jobs in one delivery"
    assert cycle(engine, now + MINUTE, receiver) == WebHooksResult(delivered=2)


def test_pools_without_a_queue_are_reported_when_that_lasts_and_when_it_ends(
    engine: Engine, now: datetime, receiver: Receiver
) -> None:
    make(engine, now)
    config, memory = submitted_jobs.store_grid(engine, now), WebHooksState()
    large = {"Executable": "x", "Requirements": {"Memory": 10**6}}
    [job_id] = submitted_jobs.submit(engine, config, now, large)
    batch.optimize(engine, config, [job_id], now=now)
    pools.cycle(engine, config, now=now, holder="test")
    pool = submitted_jobs.job(engine, job_id).submit_pool

    def look(minutes: int) -> list[dict[str, Any]]:
        before = len(receiver.got)
        cycle(engine, now + minutes * MINUTE, receiver, config, memory)
        return [body["data"] for _, body, _ in receiver.got[before:]]

    memory.looked_at = now + DAY  # the clock was set back
    assert look(0) == look(4) == []
    [said] = look(6)
    assert said["pools"] == [
        {
            "pool_id": pool,
            "state": "began",
            "since": now.isoformat(),
            "reason": "no queue is eligible for jobs that wait",
        }
    ]
    assert look(7) == [], "once"
    stored_rows.kill(engine, now, job_id)
    states = [(each.get("pools") or each["jobs"])[0] for each in look(8)]
    assert [each.get("state") for each in states] == [None, "ended"]


def test_a_throttle_that_stays_closed_is_reported_to_the_vos_of_the_site(
    engine: Engine, now: datetime, receiver: Receiver
) -> None:
    site = "    A.B.ch:\n"
    throttle = f"{site}      VO: [lhcb]\n      Throttle: {{Policy: simple, MaxJobs: 5}}\n"
    config = submitted_jobs.grid(submitted_jobs.GRID.replace(site, throttle))
    hook = make(engine, now, events=[Event.SITE_THROTTLED])
    memory = WebHooksState()
    for minutes in (0, 6):
        cycle(engine, now + minutes * MINUTE, receiver, config, memory)
    [(_, body, _)] = receiver.got
    [throttled] = body["data"]["throttles"]
    assert (throttled["scope"], throttled["reason"]) == ("A.B.ch", "no fresh advertisement")
    with database.writing(engine) as conn:
        stored_hooks.remove(conn, hook.hook_id)
    make(engine, now, events=[Event.SITE_THROTTLED], vo="atlas")
    for minutes in (12, 20):
        cycle(engine, now + minutes * MINUTE, receiver, config, memory)
    assert len(receiver.got) == 1, "a VO that may not run there is not told"


def test_a_removed_hook_takes_its_deliveries_along(engine: Engine, now: datetime, receiver: Receiver) -> None:
    hook = make(engine, now)
    end_jobs(engine, now)
    receiver.answers = [500]
    cycle(engine, now, receiver)
    with database.writing(engine) as conn:
        stored_hooks.remove(conn, hook.hook_id)
        with pytest.raises(WebHookNotFound, match=r"web hook \d+ does not exist"):
            stored_hooks.get(conn, hook.hook_id)
        assert stored_hooks.list_deliveries(conn, hook.hook_id, most=9) == []
    assert not cycle(engine, now + MINUTE, receiver)


def test_a_vo_has_so_many_hooks_each_with_a_name_of_its_own(engine: Engine, now: datetime) -> None:
    hook = make(engine, now)
    assert hook.secret != make(engine, now, vo="cms").secret
    with pytest.raises(InvalidRequest, match="lhcb has a web hook 'a' already"):
        make(engine, now)
    for number in range(9):
        make(engine, now, name=str(number))
    with pytest.raises(
        InvalidRequest, match=r"lhcb may have 10 web hooks \(Operations/lhcb/Limits/WebHooks\)"
    ):
        make(engine, now, name="b")


def test_a_test_is_sent_at_once_also_to_a_receiver_that_failed(
    engine: Engine, now: datetime, receiver: Receiver
) -> None:
    hook = make(engine, now)
    end_jobs(engine, now)
    receiver.answers = [500]
    cycle(engine, now, receiver)
    with database.writing(engine) as conn:
        stored_hooks.add_test(conn, stored_hooks.get(conn, hook.hook_id), now=now)
    assert cycle(engine, now, receiver) == WebHooksResult(delivered=2)
    assert receiver.got[-1][1] == {
        "type": "test",
        "timestamp": now.isoformat(),
        "data": {"vo": "lhcb", "hook": "a"},
    }


def test_the_log_is_deleted_also_where_nobody_runs_the_agent(
    engine: Engine, now: datetime, receiver: Receiver
) -> None:
    hook = make(engine, now)
    ids = end_jobs(engine, now)
    retain(engine, now + 60 * DAY)
    assert get(engine, hook)[0].waiting == 1
    cycle(engine, now + 60 * DAY + MINUTE, receiver)
    assert receiver.jobs() == ids
    retain(engine, now + 64 * DAY)
    assert get(engine, hook)[1] == [], "deliveries that have ended are kept for three days"


def test_what_failed_while_the_clock_was_ahead_is_sent_again_at_once_after_that(
    engine: Engine, now: datetime, receiver: Receiver
) -> None:
    hook, ahead = make(engine, now - MINUTE), now + 30 * DAY
    end_jobs(engine, now)
    receiver.answers = [500] * 8
    late = ahead
    for _ in range(7):  # until the pause is the longest
        cycle(engine, late, receiver)
        late += timedelta(hours=1)
    put_off, _ = get(engine, hook)
    assert put_off.next_try_at is not None
    assert put_off.next_try_at > ahead
    tries = len(receiver.got)
    cycle(engine, late - timedelta(hours=1), receiver)
    assert len(receiver.got) == tries, "the clock is right there: the pause lasts"
    cycle(engine, now, receiver)
    assert len(receiver.got) == tries + 1


def test_an_event_of_a_later_release_is_left_alone(engine: Engine, now: datetime, receiver: Receiver) -> None:
    hook = make(engine, now)
    databases.execute(engine, update(hook_table).values(events='["job.ended", "job.teleported"]'))
    ids = end_jobs(engine, now)
    assert get(engine, hook)[0].events == (Event.JOB_ENDED,)
    cycle(engine, now, receiver)
    assert receiver.jobs() == ids


def test_retention_goes_on_if_the_log_cannot_be_read_for_hooks(
    engine: Engine, now: datetime, caplog: pytest.LogCaptureFixture
) -> None:
    make(engine, now)
    databases.execute(engine, update(hook_table).values(events="?"))
    end_jobs(engine, now)
    assert retain(engine, now + MINUTE) is not None
    assert "the log was not read for web hooks" in caplog.text


def test_the_log_is_skipped_where_no_hook_reports_jobs(
    engine: Engine, now: datetime, receiver: Receiver
) -> None:
    make(engine, now, events=[Event.SITE_THROTTLED])
    end_jobs(engine, now)
    cycle(engine, now, receiver)
    make(engine, now, name="b")
    with database.reading(engine) as conn:
        name = stored_hooks.READER_NAME
        reader = conn.execute(select(log_readers).where(log_readers.c.name == name)).mappings().one()
    assert reader["counted"] == reader["noted"] > 0
    ids = end_jobs(engine, now)
    cycle(engine, now, receiver)
    assert receiver.jobs() == ids


def serve(engine: Engine, now: datetime, send: Send) -> WebHooksResult | None:
    memory = WebHooksState()
    return agent.cycle(engine, submitted_jobs.grid(), now=now, holder="test", memory=memory, send=send)


def test_an_unforeseen_error_is_a_failed_try_of_its_hook_only(engine: Engine, now: datetime) -> None:
    broken, good = make(engine, now, url="https://broken.example/"), make(engine, now, name="good")
    end_jobs(engine, now)

    def send(url: str, _body: bytes, _headers: Mapping[str, str]) -> SendResult:
        if "broken" in url:
            raise RecursionError("evil")
        return SendResult(answer="204", is_delivered=True)

    assert serve(engine, now, send) == WebHooksResult(delivered=1, failed=1)
    assert [get(engine, hook)[1][0].answer for hook in (broken, good)] == ["RecursionError", "204"]


def test_the_hooks_of_one_vo_leave_threads_to_others(engine: Engine, now: datetime) -> None:
    for number in range(9):
        make(engine, now, name=str(number))
    make(engine, now, vo="cms", name="other", url="https://cms.example/")
    end_jobs(engine, now)
    with database.writing(engine) as conn:
        for hook in stored_hooks.list_hooks(conn, frozenset({"cms"})):
            stored_hooks.add_test(conn, hook, now=now)
    reached, most, lock, busy = threading.Event(), 0, threading.Lock(), 0

    def send(url: str, _body: bytes, _headers: Mapping[str, str]) -> SendResult:
        nonlocal most, busy
        if "cms" in url:
            reached.set()
        else:
            with lock:
                busy += 1
                most = max(most, busy)
            assert reached.wait(300)
            with lock:
                busy -= 1
        return SendResult(answer="204", is_delivered=True)

    assert serve(engine, now, send) == WebHooksResult(delivered=10)
    assert most <= 2


def test_a_cycle_does_not_wait_for_a_receiver_without_end(
    engine: Engine, now: datetime, monkeypatch: pytest.MonkeyPatch
) -> None:
    record, passed, stop = agent._record, [0.0], threading.Event()

    def record_the_last(*args: Any, **about: Any) -> Counter[bool]:
        passed[0] = agent._WAIT_SECONDS
        return record(*args, **about)

    monkeypatch.setattr(agent, "_WAIT_SECONDS", 300.0)
    monkeypatch.setattr(agent, "_record", record_the_last)
    monkeypatch.setattr(agent, "time", SimpleNamespace(monotonic=lambda: passed[0]))
    hook, good = make(engine, now, url="https://slow.example/"), make(engine, now, name="good")
    end_jobs(engine, now)

    def send(url: str, _body: bytes, _headers: Mapping[str, str]) -> SendResult:
        if "slow" in url:
            stop.wait(600)
        return SendResult(answer="204", is_delivered=True)

    try:
        assert serve(engine, now, send) == WebHooksResult(delivered=1)
    finally:
        stop.set()
    assert [get(engine, each)[0].waiting for each in (hook, good)] == [1, 0]


def test_the_time_of_a_message_is_that_of_its_sending(
    engine: Engine, now: datetime, receiver: Receiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    make(engine, now)
    end_jobs(engine, now)
    seconds = iter(range(1000, 10**6, 100))
    monkeypatch.setattr(agent, "_BEGIN_SECONDS", 10.0**6)
    monkeypatch.setattr(agent, "_WAIT_SECONDS", 10.0**6)
    monkeypatch.setattr(agent, "time", SimpleNamespace(monotonic=lambda: float(next(seconds))))
    cycle(engine, now, receiver)
    [(_, _, headers)] = receiver.got
    assert int(headers["webhook-timestamp"]) > now.timestamp() + 100


def test_deliveries_are_bounded_in_bytes(engine: Engine, now: datetime, receiver: Receiver) -> None:
    hook = make(engine, now, events=[Event.JOB_ENDED])
    entries = [{"job_name": "\N{ROCKET}" * 255} for _ in range(200)]
    with database.writing(engine) as conn:
        stored_hooks.add_deliveries(conn, hook, Event.JOB_ENDED, entries, now=now)
    _, deliveries = get(engine, hook)
    assert len(deliveries) == 2
    assert all(len(each.body.encode()) < bounds.HOOK_BYTES + 4096 for each in deliveries)
    cycle(engine, now, receiver)
    assert [job for _, body, _ in receiver.got for job in body["data"]["jobs"]] == entries


def test_a_hook_does_not_report_the_end_of_a_state_that_was_reported_before_it(
    engine: Engine, now: datetime
) -> None:
    event = Event.POOL_WITHOUT_QUEUE
    first = make(engine, now)

    def look(minutes: int, holding: Mapping[str, str]) -> None:
        with database.writing(engine) as conn:
            hooks = stored_hooks.list_hooks(conn)
            stored_hooks.add_conditions(conn, hooks, event, holding, now=now + minutes * MINUTE)

    for minutes in (0, 6):
        look(minutes, {"p": "why"})
    second = make(engine, now + 7 * MINUTE, name="b")
    look(8, {})
    states = [json.loads(each.body)["data"]["pools"][0]["state"] for each in get(engine, first)[1]]
    assert (states, get(engine, second)[1]) == (["ended", "began"], [])


def test_states_of_a_vo_without_hooks_are_nothing_to_report(engine: Engine, now: datetime) -> None:
    with database.writing(engine) as conn:
        stored_hooks.add_conditions(conn, [], Event.SITE_THROTTLED, {"A.B.ch": "full"}, now=now)


def test_retention_leaves_the_work_to_the_agents_whose_logs_it_reads(engine: Engine, now: datetime) -> None:
    assert retain(engine, now) is not None
    for name in ("web-hooks", "accounting"):
        assert leader.acquire(engine, name, holder="b", now=now) is not None
    assert leader.acquire(engine, retention.NAME, holder="b", now=now) is None
