"""Each ended job is one trace at a collector: sent again while it is away, by each leader with equal ids."""

import http.server
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import datetime, timedelta

import pytest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.trace.v1.trace_pb2 import Span
from sqlalchemy import Engine

from agents import wait_times
from pilotage.plugins.otel import agent as traces
from pilotage.plugins.otel.agent import TracesResult, TracesState
from pilotage.plugins.otel.collector import Collector
from taskqueue.accounting.wait_times import EndedJob
from taskqueue.db import database
from tests.support.factories import accounted_jobs
from tests.support.servers.http_servers import answering

MINUTE = timedelta(minutes=1)


@dataclass(slots=True)
class Receiver:
    """An OTLP receiver that keeps what comes, or refuses it."""

    url: str = ""
    refuses: bool = False
    spans: list[Span] = field(default_factory=list)

    def take(self, body: bytes) -> int:
        if self.refuses:
            return 400
        for resource in ExportTraceServiceRequest.FromString(body).resource_spans:
            for scope in resource.scope_spans:
                self.spans += scope.spans
        return 200


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    kept = Receiver()

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["content-length"]))
            self.send_response(kept.take(body) if self.path == "/v1/traces" else 404)
            self.send_header("content-length", "0")
            self.end_headers()

        def log_message(self, *_: object) -> None:
            pass

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    kept.url = f"http://127.0.0.1:{server.server_port}"
    with answering(server):
        yield kept


@pytest.fixture
def collector(receiver: Receiver, monkeypatch: pytest.MonkeyPatch) -> Iterator[Collector]:
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_TIMEOUT", "300")  # however slow the machine is
    collector = Collector(receiver.url)
    yield collector
    collector.close()


def _attributes(span: Span) -> dict[str, str | int | float]:
    return {
        each.key.removeprefix("pilotage."): getattr(each.value, each.value.WhichOneof("value"))
        for each in span.attributes
    }


def _end_two_of_three(engine: Engine, now: datetime) -> list[int]:
    with database.writing(engine) as conn:
        job_ids = accounted_jobs.put(conn, now, 3)
        leases = accounted_jobs.begin(conn, job_ids[:2], now + MINUTE)
        accounted_jobs.finish(conn, leases, now + 2 * MINUTE)
    return job_ids


def _cycle(engine: Engine, collector: Collector, now: datetime, memory: TracesState) -> TracesResult | None:
    return traces.cycle(engine, collector.send, now=now, holder="test", memory=memory)


def test_an_ended_job_is_a_trace_of_its_phases(
    engine: Engine, now: datetime, receiver: Receiver, collector: Collector
) -> None:
    job_ids = _end_two_of_three(engine, now)
    memory = TracesState(seen=EndedJob(at=now, job_id=0))
    wait_times.cycle(engine, now=now + 10 * MINUTE, holder="test", memory=wait_times.WaitTimesState())
    assert _cycle(engine, collector, now + 10 * MINUTE, memory) == TracesResult(sent=2)
    assert _cycle(engine, collector, now + 11 * MINUTE, memory) == TracesResult(sent=0)
    roots = {_attributes(each)["job_id"]: each for each in receiver.spans if each.name == "job"}
    assert set(roots) == set(job_ids[:2])
    root = roots[job_ids[0]]
    assert not root.parent_span_id
    assert _attributes(root)["vo"] == "lhcb"
    assert _attributes(root)["status"] == "Done"
    assert _attributes(root)["waited.a pilot"] == pytest.approx(60, abs=1)
    assert root.end_time_unix_nano - root.start_time_unix_nano == 120 * 10**9
    own = [each for each in receiver.spans if each.trace_id == root.trace_id]
    phases = [each for each in own if each.parent_span_id == root.span_id]
    assert [each.name for each in phases][-2:] == ["wait", "attempt"]
    attempt = _attributes(phases[-1])
    assert (attempt["attempt"], attempt["closed_as"]) == (1, "finished")
    inner = [each.name for each in own if each.parent_span_id == phases[-1].span_id]
    assert inner == ["Matched", "Running"]
    assert len({each.span_id for each in own}) == len(own)


def test_what_a_collector_refuses_is_sent_again_and_by_the_next_leader_under_the_same_ids(
    engine: Engine, now: datetime, receiver: Receiver, collector: Collector
) -> None:
    _end_two_of_three(engine, now)
    memory = TracesState(seen=EndedJob(at=now, job_id=0))
    receiver.refuses = True
    with pytest.raises(ConnectionError):
        _cycle(engine, collector, now + 10 * MINUTE, memory)
    receiver.refuses = False
    assert _cycle(engine, collector, now + 11 * MINUTE, memory) == TracesResult(sent=2)
    first, receiver.spans = receiver.spans, []
    again = TracesState(seen=EndedJob(at=now, job_id=0))
    assert _cycle(engine, collector, now + 12 * MINUTE, again) == TracesResult(sent=2)
    assert receiver.spans == first


def test_jobs_that_end_after_the_clock_was_set_back_are_sent(
    engine: Engine, now: datetime, receiver: Receiver, collector: Collector
) -> None:
    _end_two_of_three(engine, now)
    memory = TracesState(seen=EndedJob(at=now + timedelta(days=1), job_id=9))
    assert _cycle(engine, collector, now + 10 * MINUTE, memory) == TracesResult(sent=2)
    assert _cycle(engine, collector, now + 11 * MINUTE, memory) == TracesResult(sent=0)


def test_a_new_process_goes_on_where_the_last_cycle_was(
    engine: Engine, now: datetime, receiver: Receiver, collector: Collector
) -> None:
    assert _cycle(engine, collector, now, TracesState()) == TracesResult(sent=0)
    _end_two_of_three(engine, now)
    assert _cycle(engine, collector, now + 10 * MINUTE, TracesState()) == TracesResult(sent=2)


def test_a_new_process_sends_what_a_collector_that_was_away_did_not_get(
    engine: Engine, now: datetime, receiver: Receiver, collector: Collector
) -> None:
    assert _cycle(engine, collector, now, TracesState()) == TracesResult(sent=0)
    _end_two_of_three(engine, now)
    memory = TracesState()
    receiver.refuses = True
    for minutes in range(10, 130, 30):
        with pytest.raises(ConnectionError):
            _cycle(engine, collector, now + minutes * MINUTE, memory)
    receiver.refuses = False
    assert _cycle(engine, collector, now + 130 * MINUTE, TracesState()) == TracesResult(sent=2)


def test_traces_that_no_collector_took_for_hours_are_dropped(
    engine: Engine, now: datetime, receiver: Receiver, collector: Collector
) -> None:
    _end_two_of_three(engine, now)
    memory = TracesState(seen=EndedJob(at=now, job_id=0))
    assert _cycle(engine, collector, now + timedelta(hours=7), memory) == TracesResult(sent=0)
    assert not receiver.spans
