"""All of the LHC's grid at once on two cores: what runs, what waits, and what comes and goes beside it.

1.5 million jobs run and send heartbeats as often as the service asks them to, three million wait, at a
thousand sites; 100 jobs a second are submitted, as many claimed and started, each by a pilot of its own, and
as many of the running ones end. The service, all agents and PostgreSQL share the cores with the clients. At
every tenth site the jobs of one type are counted, and a web hook reports the end of each job.

It shows whether that can go on: every rate is kept up after a sixth of the time, no queue is longer at the
end than after a third, and requests for work take no longer at the end than after a sixth.
"""

import json
import random
import threading
import time
from collections import defaultdict
from collections.abc import Generator, Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import partial
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from itertools import cycle, islice
from statistics import mean

import psutil
from sqlalchemy import Engine, text

from agents import accounting, dependencies, leader
from benchmarks import checks, copies, documents, http_load, lhcb, mixed, population, servers, services
from benchmarks.copies import Wanted
from benchmarks.http_load import Conversation, Load
from benchmarks.mixed import Held, Pilot
from benchmarks.results import Point, Result, quantile
from benchmarks.services import Service
from cs_config import validate
from examples.servers.postgres import Postgres
from pilotage.plugins.web_hooks import stored_hooks
from pilotage.plugins.web_hooks.stored_hooks import Event
from pilotage.service import lease_reports
from taskqueue.db import database


@dataclass(frozen=True, slots=True, kw_only=True)
class Scale:
    """How much there is, and for how long."""

    running: int
    waiting: int
    classes: int
    sites: int
    a_second: int  #: jobs that are submitted, claimed and ended
    minutes: int  #: a multiple of six
    minute: float  #: seconds


_FULL = Scale(
    running=1_500_000,
    waiting=3_000_000,
    classes=10_000,
    sites=1_000,
    a_second=100,
    minutes=30,
    minute=60,
)
_QUICK = Scale(running=20_000, waiting=60_000, classes=1_000, sites=200, a_second=100, minutes=6, minute=10)
#: Processes of the service.
_WORKERS = 2
#: Jobs of one submission.
_A_CALL = 50
#: Different jobs that are submitted.
_KINDS = 400
#: Connections of each kind of load.
_SUBMITTING, _WORKING, _ENDING, _BEATING = 4, 50, 20, 50
#: Of the sites one in so many has limits.
_LIMITED = 10
#: More pilots than jobs that are claimed: some find none.
_SPARE = 1.2
#: Seconds between two looks at the queues.
_LOOK = 2.0
#: A queue is longer if it grew by a quarter and by what comes in so many seconds.
_GREW, _SLACK = 1.25, 2.0

#: What may pile up: rows, or seconds.
_QUEUES: Mapping[str, str] = {
    "jobs for the optimizers": "SELECT count(*) FROM jobs WHERE due_at IS NOT NULL",
    "ended attempts to be subtracted from limits": "SELECT count(*) FROM scope_returns",
    "changes for matchers, of half a minute": (
        "SELECT count(*) FROM changes WHERE at > now() - interval '30 seconds'"
    ),
    "messages of web hooks": "SELECT count(*) FROM hook_deliveries WHERE ended_at IS NULL",
    "seconds that the accounting is late": """
        SELECT max(extract(epoch FROM now() - at) - CASE name WHEN 'waits' THEN 120 ELSE 0 END)
        FROM log_readers CROSS JOIN LATERAL
          (SELECT at FROM job_log WHERE log_id > counted ORDER BY log_id LIMIT 1) AS next
    """,
    "seconds since the last search for lost jobs": """
        SELECT extract(epoch FROM now() - last_cycle_at) FROM agent_leases WHERE name = 'lost-jobs'
    """,
    "seconds that the latest agent is late": """
        SELECT max(extract(epoch FROM now() - last_cycle_at) - every)
        FROM agent_leases JOIN (SELECT * FROM json_each_text(:intervals)) AS wanted (name, pause) USING (name)
        CROSS JOIN LATERAL (SELECT CAST(pause AS float) AS every) AS seconds
    """,
}
_HELD = text("""
    SELECT attempts.lease, original.job_id AS original
    FROM attempts original JOIN attempts USING (holder)
    WHERE original.job_id = ANY(:ids) AND attempts.closed_at IS NULL
""")
_PILOTS = text("""
    INSERT INTO pilots (stamp, vo, status, status_reason, site, ce, queue, submitted_by, jobs,
      created_at, updated_at, last_seen_at)
    SELECT stamp, vo, 'Running', '', site, ce, queue, '', 1, now(), now(), now()
    FROM attempts WHERE stamp LIKE 'copy %'
""")
_READERS = (*sorted(accounting.READERS | dependencies.READERS), stored_hooks.READER_NAME)
#: What was copied counts as if the accounting had read the log of the copies.
_COUNTED = (
    text("""
        INSERT INTO log_readers SELECT name, last, last, '[]'
        FROM json_array_elements_text(CAST(:readers AS json)) AS name
        CROSS JOIN (SELECT max(log_id) AS last FROM job_log) AS log
        ON CONFLICT (name) DO UPDATE SET counted = excluded.counted, noted = excluded.noted
    """).bindparams(readers=json.dumps(_READERS)),
    text("DELETE FROM job_stocks"),
    text("INSERT INTO job_stocks SELECT vo, status, count(*) FROM jobs GROUP BY vo, status"),
)
_STALLED = text("SELECT count(*) FROM jobs WHERE status = 'Stalled'")
_LOG = text("SELECT pg_wal_lsn_diff(pg_current_wal_insert_lsn(), '0/0')")
_SIZE = text("SELECT pg_database_size(current_database())")


def run(*, quick: bool) -> Iterator[Result]:
    """Minute by minute, then the queues, the memory, and what is wrong in the tables."""
    yield from measure(_QUICK if quick else _FULL)


def measure(scale: Scale) -> Iterator[Result]:
    """The same at any scale."""
    began = time.monotonic()
    with servers.postgres() as server, servers.fresh_database(server, "wlcg") as url:
        engine = database.connect(url)
        _let_wait(engine, scale)
        with services.serving(url, _tree(), workers=_WORKERS) as service, _receive() as receiver:
            stage = _let_run(server, engine, service, scale)
            _add_hook(engine, receiver)
            yield _line(scale, time.monotonic() - began)
            with services.running_agents(url, web_hook_networks="127.0.0.1/32") as agents:
                yield from _measure(stage, agents)
        if found := [*checks.flaws(engine, jobs=stage.jobs), *_silent(engine)]:
            yield Result(values={"what": "flaws", "count": len(found)}, flaws=found)
        engine.dispose()


def _line(scale: Scale, seconds: float) -> Result:
    return Result(
        values={
            "what": f"{scale.running:,} jobs run, {scale.waiting:,} wait, {scale.sites:,} sites",
            "filled in s": round(seconds),
        }
    )


def _tree() -> str:
    """The configuration of the sites, with the heartbeats of a large installation (`sizing.md`)."""
    tree = json.loads(documents.tree())
    defaults = tree["Operations"]["Defaults"]
    defaults["Leases"] = {"StalledTime": 7_200, "LongestHeartbeatTime": 1_800}
    limits = {site: {"JobType": {"MCSimulation": 10_000_000}} for site in documents.SITES[::_LIMITED]}
    defaults["JobScheduling"] = {"RunningLimit": limits}
    return json.dumps(tree)


def _let_wait(engine: Engine, scale: Scale) -> None:
    described = documents.descriptions(scale.classes)
    firsts = population.submit(engine, validate.parse(_tree()), described)
    sizes = lhcb.sizes(scale.classes, scale.waiting)
    wanted = [Wanted(original=job, copies=size - 1) for job, size in zip(firsts, sizes, strict=True)]
    copies.store(engine, wanted)
    population.settle(engine)


@dataclass(slots=True, kw_only=True)
class Stage:
    """Who takes part, and what there is by now."""

    scale: Scale
    server: Postgres
    engine: Engine
    service: Service
    nodes: Sequence[Mapping[str, object]]  #: whose pilots find jobs
    held: Sequence[Held]  #: running jobs, in no order; those at the end will end
    jobs: int  #: all that there are
    beats: float  #: a second
    beaten: int = 0  #: heartbeats so far
    ended: int = 0

    def next_minute(self) -> "Minute":
        """What is to be sent in a minute; it takes the next ones of the running jobs."""
        seconds, rate = self.scale.minute, self.scale.a_second
        ending = round(rate * seconds)
        lasting = len(self.held) - round(rate * seconds * self.scale.minutes)
        numbers = range(self.beaten, self.beaten + round(1.1 * self.beats * seconds))
        minute = Minute(
            pilots=list(islice(self._pilots(), round(_SPARE * rate * seconds))),
            beating=[self.held[number % lasting] for number in numbers],
            ending=self.held[len(self.held) - self.ended - ending : len(self.held) - self.ended],
        )
        self.beaten += round(self.beats * seconds)
        self.ended += ending
        return minute

    def _pilots(self) -> Iterator[Pilot]:
        for node in cycle(random.sample(self.nodes, len(self.nodes))):
            yield _pilot(self.service, node)


@dataclass(frozen=True, slots=True, kw_only=True)
class Minute:
    """What is to be sent in a minute."""

    pilots: Sequence[Pilot]
    beating: Sequence[Held]
    ending: Sequence[Held]


def _pilot(service: Service, node: Mapping[str, object]) -> Pilot:
    place = f"{node['site']}/{node['GridCE']}/{node['Queue']}"
    return service.token("pilot", vo=lhcb.VO, queue=place), dict(node)


def _let_run(server: Postgres, engine: Engine, service: Service, scale: Scale) -> Stage:
    """A job for a pilot of each site, taken as pilots do, and copies of it with pilots of their own."""
    nodes = documents.nodes()[: scale.sites * documents.NODES_A_SITE : documents.NODES_A_SITE]
    pilots = [_pilot(service, node) for node in nodes]
    begun = http_load.drive(service.url, partial(_begin, pilots), connections=_WORKING, seconds=600)
    if begun.errors:
        raise http_load.RequestsFailed(f"{begun.errors} requests failed: {begun.describe_errors()}")
    taken = dict(entry for found in begun.returned for entry in found)
    originals = list(taken)
    more = scale.running - len(originals)
    shares = [more // len(originals) + (number < more % len(originals)) for number in range(len(originals))]
    wanted = [Wanted(original=job, copies=share) for job, share in zip(originals, shares, strict=True)]
    copies.store(engine, wanted, running=True)
    with database.writing(engine) as conn:
        conn.execute(text("SET LOCAL statement_timeout = 0"))
        conn.execute(_PILOTS)
        for statement in _COUNTED:
            conn.execute(statement)
        found = conn.execute(_HELD, {"ids": originals})
        held = [(pilots[taken[row.original]][0], row.lease) for row in found]
    with database.writing(engine) as conn:
        conn.execute(text("SET LOCAL statement_timeout = 0"))
        copies.count_running(conn)
    population.settle(engine)
    random.Random(0).shuffle(held)
    return Stage(
        scale=scale,
        server=server,
        engine=engine,
        service=service,
        nodes=[nodes[number] for number in taken.values()],
        held=held,
        jobs=scale.waiting + scale.running - len(originals),
        beats=scale.running / lease_reports.heartbeat_every(validate.parse(_tree()), lhcb.VO, scale.running),
    )


@contextmanager
def _receive() -> Iterator[str]:
    """The address of a server that takes what web hooks send."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), _Receiver)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{server.server_port}/"
    finally:
        server.shutdown()
        server.server_close()


class _Receiver(BaseHTTPRequestHandler):
    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["Content-Length"]))
        self.send_response(HTTPStatus.NO_CONTENT)
        self.end_headers()

    def log_message(self, *_: object) -> None:
        """Write nothing."""


def _add_hook(engine: Engine, url: str) -> None:
    with database.writing(engine) as conn:
        stored_hooks.create(
            conn,
            vo=lhcb.VO,
            name="ends",
            url=url,
            events=[Event.JOB_ENDED],
            created_by="bench",
            most=1,
            now=datetime.now(UTC),
        )


@dataclass(slots=True)
class Samples:
    """How long the queues were, minute by minute."""

    engine: Engine
    found: defaultdict[str, list[float]] = field(default_factory=lambda: defaultdict(list))

    def look(self) -> None:
        """Count all of them."""
        values = {"intervals": json.dumps(leader.INTERVALS)}
        with database.reading(self.engine) as conn:
            for what, statement in _QUEUES.items():
                self.found[what].append(max(0.0, float(conn.scalar(text(statement), values) or 0)))

    def take(self) -> dict[str, float]:
        """The means since the last call."""
        means = {what: mean(lengths) for what, lengths in self.found.items()}
        self.found.clear()
        return means


def _measure(stage: Stage, agents: psutil.Process) -> Iterator[Result]:
    """All minutes, and what became of the queues; what is compared are the sixth, the third, and the last."""
    minutes = stage.scale.minutes
    http_load.get_ready(4)
    samples, meter = Samples(stage.engine), Meter(stage, agents)
    queues: dict[int, dict[str, float]] = {}
    p99: dict[int, float] = {}
    coming = stage.next_minute()
    for number in range(1, minutes + 1):
        running = _begin_minute(stage, coming)
        coming = stage.next_minute() if number < minutes else coming
        while not all(each.done() for each in running.values()):
            samples.look()
            time.sleep(min(_LOOK, stage.scale.minute / 5))
        loads = {kind: each.result() for kind, each in running.items()}
        stage.jobs += _A_CALL * len(loads["submitted"].latencies)
        queues[number] = samples.take()
        p99[number] = 1000 * quantile(loads["claimed"].by_kind["claim"], 0.99)
        yield _of_minute(stage, number, loads, p99[number], meter.read())
    yield _compared(p99[minutes // 6], p99[minutes])
    yield from _piled_up(stage.scale, queues[minutes // 3], queues[minutes])
    yield from meter.memory()


def _begin_minute(stage: Stage, minute: Minute) -> Mapping[str, "Future[Load]"]:
    rate = stage.scale.a_second
    user = stage.service.token("user", vo=lhcb.VO, user="lbprods", group="lhcb_prmgr")
    described = documents.descriptions(_KINDS)
    kinds: Mapping[str, tuple[http_load.Script, int, float]] = {
        "submitted": (partial(_submit, user, described), _SUBMITTING, rate / _A_CALL),
        # A start follows each claim.
        "claimed": (partial(_work, minute.pilots), _WORKING, 2 * rate),
        "ended": (partial(_end, minute.ending), _ENDING, rate),
        "heartbeats": (partial(_beat, minute.beating), _BEATING, stage.beats),
    }
    return {
        kind: http_load.begin(
            stage.service.url,
            script,
            connections=connections,
            seconds=stage.scale.minute,
            per_second=per_second,
        )
        for kind, (script, connections, per_second) in kinds.items()
    }


def _of_minute(
    stage: Stage, number: int, loads: Mapping[str, Load], p99: float, used: Mapping[str, float]
) -> Result:
    is_judged = number >= stage.scale.minutes // 6  # before, it begins: caches are cold, all agents are due
    answers = {kind: len(load.latencies) for kind, load in loads.items()}
    done = {
        "submitted": _A_CALL * answers["submitted"],
        "claimed": sum(loads["claimed"].returned),
        "ended": answers["ended"],
        "heartbeats": answers["heartbeats"],
    }
    wanted = {**dict.fromkeys(done, float(stage.scale.a_second)), "heartbeats": stage.beats}
    a_second = {kind: count / stage.scale.minute for kind, count in done.items()}
    clients = sum(load.cpu_seconds for load in loads.values()) / stage.scale.minute
    return Result(
        values={
            "what": f"minute {number}",
            **{f"{kind}/s": round(rate) for kind, rate in a_second.items()},
            "claim p50 ms": round(1000 * quantile(loads["claimed"].by_kind["claim"], 0.5), 1),
            "claim p99 ms": round(p99, 1),
            "heartbeat p99 ms": loads["heartbeats"].quantile_ms(0.99),
            **used,
            "client cores": round(clients, 2),
        },
        targets={"wlcg rates": min(a_second[kind] / wanted[kind] for kind in done)} if is_judged else {},
        note=f"minute {number}",
        points=[Point(plot="wlcg", line="claim, p99 ms", x=number, y=p99)],
        flaws=[
            f"{each.errors} requests that {kind} failed: {each.describe_errors()}"
            for kind, each in loads.items()
            if each.errors
        ],
    )


def _compared(early: float, late: float) -> Result:
    ratio = late / max(1e-3, early)
    return Result(
        values={"what": "p99 of requests for work, the end against a sixth", "ratio": round(ratio, 2)},
        targets={"wlcg p99": ratio},
        note=f"{early:.0f} ms, {late:.0f} ms at the end",
    )


def _piled_up(scale: Scale, middle: Mapping[str, float], end: Mapping[str, float]) -> Iterator[Result]:
    """Each queue after a third of the time and at the end, and how many of them grew."""
    slack = {True: _SLACK, False: _SLACK * scale.a_second}
    grown = [what for what in end if end[what] > _GREW * middle[what] + slack[what.startswith("seconds")]]
    for what in end:
        values = {"after a third": round(middle[what], 1), "at the end": round(end[what], 1)}
        yield Result(values={"what": what, **values})
    yield Result(
        values={"what": "queues that grew", "number": len(grown)},
        targets={"wlcg queues": len(grown)},
        note=", ".join(grown),
    )


class Meter:
    """What the processes have used since the last reading, and their memory."""

    def __init__(self, stage: Stage, agents: psutil.Process) -> None:
        self._stage = stage
        self._agents = agents
        self._last = self._totals()

    def read(self) -> dict[str, float]:
        """Cores, megabytes of log a second, and the database's gigabytes."""
        now = self._totals()
        seconds = now["time"] - self._last["time"]
        a_second = {name: (now[name] - self._last[name]) / seconds for name in now}
        self._last = now
        with database.reading(self._stage.engine) as conn:
            size = conn.scalar(_SIZE) or 0
        return {
            "service cores": round(a_second["service"], 2),
            "agent cores": round(a_second["agents"], 2),
            "PostgreSQL cores": round(a_second["server"], 2),
            "log MB/s": round(a_second["log"] / 1e6, 2),
            "database GB": round(size / 1e9, 2),
            "memory MB": round(sum(map(_megabytes, self._processes().values()))),
        }

    def memory(self) -> Iterator[Result]:
        """The memory of each part; what processes share counts in parts."""
        for what, processes in self._processes().items():
            values = {"processes": len(processes), "memory MB": round(_megabytes(processes))}
            yield Result(values={"what": f"memory of {what}", **values})

    def _totals(self) -> dict[str, float]:
        with database.reading(self._stage.engine) as conn:
            log = float(conn.scalar(_LOG) or 0)
        return {
            "time": time.monotonic(),
            "service": self._stage.service.cpu_seconds(),
            "agents": sum(self._agents.cpu_times()[:2]),
            "server": servers.cpu_seconds(self._stage.server),
            "log": log,
        }

    def _processes(self) -> Mapping[str, Sequence[psutil.Process]]:
        service = self._stage.service.process
        server = servers.main_process(self._stage.server)
        return {
            "the service": [service, *service.children(recursive=True)],
            "the agents": [self._agents],
            "PostgreSQL": [server, *server.children(recursive=True)],
        }


def _megabytes(processes: Sequence[psutil.Process]) -> float:
    total = 0.0
    for each in processes:
        with suppress(psutil.NoSuchProcess):  # a session that has ended
            total += each.memory_full_info().pss
    return total / 2**20


def _silent(engine: Engine) -> Iterator[str]:
    with database.reading(engine) as conn:
        if stalled := conn.scalar(_STALLED):
            yield f"{stalled} jobs are Stalled, though nobody was silent"


def _begin(pilots: Sequence[Pilot], number: int) -> Conversation:
    """Take a job with each pilot and start it: its id with the number of the pilot."""
    begun: list[tuple[int, int]] = []
    for place in range(number, len(pilots), _WORKING):
        found = yield from _claim(pilots[place])
        begun += [(job_id, place) for job_id in found]
    return begun


def _claim(pilot: Pilot) -> Generator[bytes, http_load.Answer, list[int]]:
    """Ask and start what is found: the ids of the jobs."""
    answer = yield mixed.ask(pilot, "claim", count=1)
    found = answer.json()["matches"] if answer.status == HTTPStatus.OK else []
    for match in found:
        yield mixed.request("start", "POST", f"/leases/{match['lease']}/start", pilot[0], {})
    return [match["job_id"] for match in found]


def _work(pilots: Sequence[Pilot], number: int) -> Conversation:
    """Each pilot takes one job; how many did."""
    claimed = 0
    try:
        for pilot in pilots[number::_WORKING]:
            claimed += len((yield from _claim(pilot)))
    except http_load.Over:
        pass
    return claimed


def _end(held: Sequence[Held], number: int) -> Conversation:
    for token, lease in held[number::_ENDING]:
        body = {"status": "Done", "exit_code": 0}
        yield mixed.request("end", "POST", f"/leases/{lease}/finish", token, body)


def _beat(held: Sequence[Held], number: int) -> Conversation:
    for token, lease in held[number::_BEATING]:
        body = {"progress": "event 17 of 400"}
        yield mixed.request("heartbeat", "POST", f"/leases/{lease}/heartbeat", token, body)


def _submit(user: str, described: Sequence[Mapping[str, object]], number: int) -> Conversation:
    for each in cycle(described[number::_SUBMITTING]):
        job = {name: value for name, value in each.items() if name not in ("Owner", "OwnerGroup")}
        yield mixed.request("submit", "POST", "/jobs", user, {"jobs": [job] * _A_CALL})
