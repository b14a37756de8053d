"""Jobs a second until Waiting: JDL in over HTTP, a thousand a call, the optimizers included.

Each job has a name, arguments and output files of its own; a call brings those of a few productions, which go
on for weeks: the service has had some jobs of each before. Clock and processor time count from the first
byte sent until the last job waits, on a server that has everything: the service, the optimizers (in the
service, or workers behind Redis), PostgreSQL and the client.

Beside it: rows of the same four tables in bulk, with nothing else done; and RQ with jobs that do nothing,
a job and a job of a thousand at a time.
"""

import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

import httpx
from redis import Redis
from rq import Queue, SimpleWorker
from sqlalchemy import Engine, func, select, text

from benchmarks import lhcb, servers, services
from benchmarks.results import Point, Result
from benchmarks.services import Service
from cs_config.options import bounds
from examples.servers.redis_server import RedisServer
from taskqueue.db import database
from taskqueue.schema.tables import jobs, waiting_jobs

A_CALL = 1_000
#: Productions that the jobs of one call belong to, and of all.
_KINDS_A_CALL, _KINDS = 10, 200
#: Calls under way at a time.
_CLIENTS = 2
#: Seconds until the jobs have to wait.
_PATIENCE = 600.0


@dataclass(frozen=True, slots=True, kw_only=True)
class _Mix:
    """What a benchmark submits."""

    what: str
    bodies: Callable[[int], dict[str, object]]  #: the body of the call with this number
    target: bool = False  #: the one that the target is about


def run(*, quick: bool) -> Iterator[Result]:
    """Without and with Redis, by the kind of descriptions; then what bounds it."""
    calls = 12 if quick else 60
    mixes = (
        _Mix(what="JDL, each job its own", bodies=_jdls, target=True),
        _Mix(what="JDL, parametric", bodies=_parametric),
        _Mix(what="JDL, all of a call alike", bodies=_alike),
    )
    with servers.postgres() as server:
        with servers.fresh_database(server, "bare") as url:
            bare = _bare(url, calls)
        yield Result(
            values={"what": "rows in bulk, nothing else", "jobs": calls * A_CALL, "per second": bare}
        )
        for workers in (0, 1) if quick else (0, 1, 2):
            for mix in mixes[:1] if workers > 1 else mixes[:2] if quick else mixes:
                with servers.fresh_database(server, "submit") as url:
                    yield _measured(url, mix, calls, workers, bare)
        with servers.fresh_database(server, "largest") as url:
            yield _largest(url)
    yield from _rq(calls)


def _largest(url: str) -> Result:
    """The largest submission that the service accepts in one request, without the optimizers."""
    with ExitStack() as stack:
        service = stack.enter_context(
            services.serving(url, configuration(), redis_url=stack.enter_context(_redis()))
        )
        body = _parametric(0)
        body["jdl"] = str(body["jdl"]).replace(
            f"Parameters = {A_CALL}", f"Parameters = {bounds.SUBMITTED_JOBS}"
        )
        with _client(service) as client:
            _submit(client, _parametric(1))
            before, used = service.peak_megabytes(), service.cpu_seconds()
            jobs = _submit(client, body)
        seconds, megabytes = service.cpu_seconds() - used, service.peak_megabytes() - before
    return Result(
        values={
            "what": "the largest request",
            "jobs": jobs,
            "service CPU s": round(seconds, 2),
            "service MB more": round(megabytes),
        },
        flaws=[f"{seconds:.2f} s of 1"] * (seconds > 1) + [f"{megabytes:.0f} MB of 50"] * (megabytes > 50),
    )


def configuration() -> str:
    """A queue at each site."""
    lines = ["Resources:", "  Sites:"]
    for number, site in enumerate(lhcb.SITES):
        lines += [f"    {site}:", "      CEs:", "        ce01:", "          Queues:"]
        lines += [
            f"            long: {{CPUTime: 1100000, MaxRAM: 4000, Memory: {2000 + 1000 * (number % 4)}}}"
        ]
    options = "JobDescription: {CPUTime: {max: 2000000}}, Limits: {WaitingJobsPerOwner: 100000000}"
    operations = f"Operations: {{Defaults: {{{options}}}}}"
    return "\n".join([*lines, "Registry:", f"  VO: {{{lhcb.VO}: {{}}}}", operations, ""])


def _measured(url: str, mix: _Mix, calls: int, workers: int, bare: int) -> Result:
    with ExitStack() as stack:
        redis_url = stack.enter_context(_redis()) if workers else None
        service = stack.enter_context(services.serving(url, configuration(), redis_url=redis_url))
        for _ in range(workers):
            stack.enter_context(_worker(url, str(redis_url)))
        engine = database.connect(url, pool_size=2)
        stack.callback(engine.dispose)
        bodies = [mix.bodies(number) for number in range(calls)]
        with _client(service) as client:
            warm = _submit(client, _of_all())
            _until_waiting(engine, warm)
            used, began = service.cpu_seconds(), time.perf_counter()
            with ThreadPoolExecutor(_CLIENTS) as pool:
                submitted = sum(pool.map(lambda body: _submit(client, body), bodies))
            accepted = time.perf_counter() - began
            _until_waiting(engine, warm + submitted)
        seconds = time.perf_counter() - began
        rate = submitted / seconds
        return Result(
            values={
                "what": f"{mix.what}; {f'{workers} workers' if workers else 'optimizers in the service'}",
                "jobs": submitted,
                "per second": round(rate),
                "accepted per second": round(submitted / accepted),
                "of bulk rows": round(rate / bare, 2),
                "service CPU µs a job": round(1e6 * (service.cpu_seconds() - used) / submitted),
            },
            flaws=_flaws(engine, warm + submitted),
            targets={"submit": rate} if mix.target and workers < 2 else {},
            points=[Point(plot="submit", line=mix.what, x=workers, y=rate)],
        )


def _jdls(call: int) -> dict[str, object]:
    """A thousand texts, each with a name, arguments, log and seed of its own."""
    draw = random.Random(call)
    kinds = draw.sample(_kinds(), _KINDS_A_CALL)
    return {"jdls": [_jdl(draw.choice(kinds), draw.randrange(10**8)) for _ in range(A_CALL)]}


def _of_all() -> dict[str, object]:
    """Some jobs of each production."""
    return {"jdls": [_jdl(kind, number) for number in range(A_CALL // _KINDS) for kind in _kinds()]}


def _jdl(kind: str, number: int) -> str:
    return f"""[
JobName = "sim_{number}";
Executable = "run.sh";
Arguments = "--first-event {number} --seed {number % 7919}";
StdOutput = "std.out";
StdError = "std.err";
OutputSandbox = {{"std.out", "std.err", "log_{number}.txt"}};
{kind}]
"""


def _parametric(call: int) -> dict[str, object]:
    """One text that makes a thousand jobs."""
    draw = random.Random(call)
    jdl = _jdl(draw.choice(_kinds()), call).replace(f"--first-event {call}", "--first-event %s")
    return {"jdl": jdl.replace("[\n", f"[\nParameters = {A_CALL};\nParameterStart = {call};\n", 1)}


def _alike(call: int) -> dict[str, object]:
    """One text a thousand times."""
    return {"jdls": [_jdl(_kinds()[call % _KINDS], call)] * A_CALL}


def _kinds() -> list[str]:
    """What the jobs of each production ask."""
    draw = random.Random(0)
    return [_kind(draw, number) for number in range(_KINDS)]


def _kind(draw: random.Random, number: int) -> str:
    sites = ", ".join(f'"{site}"' for site in sorted(draw.sample(lhcb.SITES, draw.randint(45, 55))))
    memory = f"Requirements = other.Memory >= {1000 * draw.randint(1, 4)};\n" if number % 2 else ""
    return (
        f'JobType = "{draw.choice(list(lhcb.JOB_TYPES))}";\nJobGroup = "{number:08d}";\n'
        f"CPUTime = {draw.choice(lhcb.CPU_TIMES)};\nSite = {{{sites}}};\n{memory}"
    )


@contextmanager
def _client(service: Service) -> Iterator[httpx.Client]:
    token = service.token("user", vo=lhcb.VO, user="ada")
    headers = {"Authorization": f"Bearer {token}"}
    with httpx.Client(base_url=service.url, headers=headers, timeout=120, trust_env=False) as client:
        yield client


def _submit(client: httpx.Client, body: dict[str, object]) -> int:
    answer = client.post("/api/v1/jobs", json=body)
    assert answer.status_code == 201, answer.text[:500]
    return len(answer.json()["job_ids"])


_WAITING = select(func.count()).select_from(waiting_jobs)


def _until_waiting(engine: Engine, wanted: int) -> None:
    deadline = time.monotonic() + _PATIENCE
    while True:
        with database.reading(engine) as conn:
            if (conn.scalar(_WAITING) or 0) >= wanted:
                return
        assert time.monotonic() < deadline, f"{wanted} jobs did not come to wait"
        time.sleep(0.05)


#: Jobs whose log is anything but Received, Waiting.
_ODD = text("""
    SELECT count(*) FROM jobs LEFT JOIN
      (SELECT job_id, string_agg(to_status, ',' ORDER BY log_id) AS way FROM job_log GROUP BY job_id) ways
      USING (job_id) WHERE way IS DISTINCT FROM 'Received,Waiting' OR status <> 'Waiting'
""")


def _flaws(engine: Engine, wanted: int) -> list[str]:
    with database.reading(engine) as conn:
        stored = conn.scalar(select(func.count()).select_from(jobs)) or 0
        waiting, odd = conn.scalar(_WAITING) or 0, conn.scalar(_ODD) or 0
    counts = {"jobs stored": stored, "jobs waiting": waiting}
    found = [f"{count} {what} of {wanted}" for what, count in counts.items() if count != wanted]
    return [*found, *([f"{odd} jobs have other log rows than Received and Waiting"] if odd else [])]


#: A job, two log rows and a waiting row for each number: what a submission leaves behind.
_BARE = """
    WITH span AS (SELECT generate_series(CAST(:first AS bigint), :last) AS n),
    new_jobs AS (
      INSERT INTO jobs (job_id, vo, owner, owner_group, status, minor_status, application_status, job_name,
        job_type, job_group, priority, description_id, site, epoch, reschedules, submitted_at, updated_at)
      SELECT n, 'lhcb', 'ada', 'lhcb_user', 'Waiting', '', '', CAST(n AS text), '', '', 1, 1, 'ANY', 0, 0,
        now(), now() FROM span),
    new_rows AS (
      INSERT INTO job_log (job_id, at, to_status, minor_status, application_status, source, epoch)
      SELECT n, now(), status, '', '', 'bare', 0 FROM span, (VALUES ('Received'), ('Waiting')) AS s (status))
    INSERT INTO waiting_jobs (job_id, task_queue_id, priority) SELECT n, 1, 1 FROM span
"""
_BEFORE = """
    WITH description AS (INSERT INTO descriptions (description_id, source, body) VALUES (1, '', '{}')),
    class AS (INSERT INTO requirement_classes (class_id, digest, vo, definition) VALUES (1, '', 'lhcb', '{}'))
    INSERT INTO task_queues (task_queue_id, class_id, vo, owner, owner_group, priority, changed_at)
    VALUES (1, 1, 'lhcb', 'ada', 'lhcb_user', 1, now())
"""


def _bare(url: str, calls: int) -> int:
    """Jobs a second when PostgreSQL makes up the rows itself, a thousand jobs a transaction."""
    engine = database.connect(url, pool_size=1)
    with database.writing(engine) as conn:
        conn.execute(text(_BEFORE))
    began = time.perf_counter()
    for call in range(calls):
        span = {"first": 1 + call * A_CALL, "last": (call + 1) * A_CALL}
        with database.writing(engine) as conn:
            conn.execute(text(_BARE), span)
    rate = calls * A_CALL / (time.perf_counter() - began)
    engine.dispose()
    return round(rate)


@contextmanager
def _redis() -> Iterator[str]:
    with tempfile.TemporaryDirectory(prefix="pilotage-bench-") as name:
        server = RedisServer(Path(name))
        server.start()
        try:
            yield server.url
        finally:
            server.stop()


@contextmanager
def _worker(database_url: str, redis_url: str) -> Iterator[None]:
    arguments = ["worker", "--database-url", database_url, "--redis-url", redis_url, "--log-level", "warning"]
    process = subprocess.Popen([sys.executable, "-m", "pilotage.cli", *arguments])
    try:
        yield
    finally:
        process.terminate()
        process.wait(300)


def _rq(calls: int) -> Iterator[Result]:
    """What RQ does with jobs that do nothing, put in and done, in one process after the other."""
    with _redis() as url:
        for at_once, count in ((1, 50 * calls), (A_CALL, calls)):
            command = f"from benchmarks import submit; print(submit.done_by_rq({url!r}, {at_once}, {count}))"
            answer = subprocess.run(
                [sys.executable, "-c", command], capture_output=True, text=True, check=True
            )
            rate = float(answer.stdout.split()[-1])
            what = f"RQ alone, {at_once:,} job ids in each of its jobs"
            yield Result(values={"what": what, "jobs": at_once * count, "per second": round(rate)})


def done_by_rq(redis_url: str, at_once: int, count: int) -> float:
    """Ids a second through RQ's jobs of so many, each of which does nothing."""
    with Redis.from_url(redis_url) as connection:
        queue = Queue("bench", connection=connection)
        began = time.perf_counter()
        for _ in range(count):
            queue.enqueue(nothing, list(range(at_once)), result_ttl=0)
        SimpleWorker([queue], connection=connection).work(burst=True, logging_level=None)
        return at_once * count / (time.perf_counter() - began)


def nothing(_ids: Sequence[int]) -> None:
    """What RQ is given to do."""
