"""Traffic of a large VO: 100,000 running jobs that send heartbeats, jobs that come and go, people who look.

An hour is compressed into twelve minutes, of which a quick run has two thirds of one: 72,000 jobs submitted,
matched, started and finished, a heartbeat of each running job every ten minutes, idle pilots that ask, and
pages. The latency of a request counts from the moment at which it was due. After that, heartbeats as fast as
they are answered beside 500 matches a second, and matches as fast as they are answered beside 2,000
submitted jobs a second.
"""

import itertools
import uuid
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from sqlalchemy import Engine, text

from benchmarks import checks, copies, http_load, lhcb, population, servers, services
from benchmarks.http_load import Conversation, Load
from benchmarks.results import Point, Result, quantile
from benchmarks.services import Service
from requirements.requirement_class import RequirementClass
from taskqueue.db import database

_API = "/api/v1"
_COMPRESSED = 5
#: Things a second, of the compressed hour.
_JOBS = 20 * _COMPRESSED
_BEATS = 100_000 // 600 * _COMPRESSED
_POLLS = 20 * _COMPRESSED
_PAGES = 2 * _COMPRESSED
_A_CALL = 50
#: Tokens that report on the running jobs, and copies of the job of each.
_PILOTS, _EACH = 100, 1_000
#: Pilots that take jobs and end them, one after the other.
_WORKING = 100
_CLASSES, _WAITING = 1_000, 200_000
#: Less than any job needs.
_TOO_SHORT = 60
_MATCHES = 500
_SUBMITTED = 2_000
#: Connections that take jobs.
_TAKING = 32
#: Of the matches that shall be; where there were fewer, fewer of the heartbeats count.
_ENOUGH = 0.95
_LEASES = text("""
    SELECT attempts.lease, original.job_id AS original
    FROM attempts original JOIN attempts USING (holder) WHERE original.job_id = ANY(:ids)
""")
_SHARES = (0.5, 0.9, 0.99)

#: A pilot's token and what it offers.
Pilot = tuple[str, dict[str, object]]
#: The token of a job's pilot, and its lease.
Held = tuple[str, str]


def run(*, quick: bool) -> Iterator[Result]:
    """The traffic, then heartbeats beside matches."""
    seconds = 40.0 if quick else 720.0
    with servers.postgres() as server, servers.fresh_database(server, "mixed") as url:
        engine = database.connect(url)
        population.fill(engine, classes=_CLASSES, waiting=_WAITING)
        with services.serving(url, lhcb.tree(), workers=2) as service:
            stage = _stage(engine, service)
            submitted = 0
            for result, jobs in _traffic(stage, seconds):
                submitted += jobs
                yield result
            yield from _beside_matches(stage, min(60.0, seconds / 4))
            for result, jobs in _beside_submissions(stage, min(30.0, seconds / 4)):
                submitted += jobs
                yield result
        found = checks.flaws(engine, jobs=_WAITING + _PILOTS * _EACH + submitted)
        engine.dispose()
    yield Result(values={"what": "jobs doubled or lost", "answers": len(found)}, flaws=found)


@dataclass(frozen=True, slots=True, kw_only=True)
class Stage:
    """Who takes part."""

    service: Service
    pilots: Sequence[Pilot]  #: without a job
    gateways: Sequence[Pilot]  #: that may hold any number of jobs
    held: Sequence[Held]
    user: str  #: token


def _stage(engine: Engine, service: Service) -> Stage:
    """Pilots with one running job each, taken as pilots do, and a thousand copies of it; and others."""
    some = list(itertools.islice(pilots(service), _PILOTS + _WORKING))
    holders, working = some[:_PILOTS], some[_PILOTS:]
    begun = http_load.drive(service.url, partial(_begin, holders), connections=_PILOTS, seconds=120)
    if begun.errors:
        raise http_load.RequestsFailed(f"{begun.errors} requests failed: {begun.describe_errors()}")
    tokens = {job_id: token for job_id, token in begun.returned if job_id}
    with database.writing(engine) as conn:
        conn.execute(text("SET LOCAL statement_timeout = 0"))
        copies.make(conn, [copies.Wanted(original=job_id, copies=_EACH) for job_id in tokens], running=True)
        leases = conn.execute(_LEASES, {"ids": list(tokens)})
        held = [(tokens[row.original], row.lease) for row in leases]
    population.settle(engine)
    user = service.token("user", vo=lhcb.VO, user="lbprods", group="lhcb_prmgr")
    taking = list(itertools.islice(gateways(service), _PILOTS))
    return Stage(service=service, pilots=working, gateways=taking, held=held, user=user)


def pilots(service: Service) -> Iterator[Pilot]:
    """Pilots of all queues in turn."""
    for queue in itertools.cycle(lhcb.queues()):
        place = f"{queue['Site']}/{queue['GridCE']}/{queue['Queue']}"
        yield service.token("pilot", vo=lhcb.VO, queue=place), dict(queue)


def gateways(service: Service) -> Iterator[Pilot]:
    """The same with tokens of gateways, each of which may hold any number of jobs."""
    for queue in itertools.cycle(lhcb.queues()):
        yield service.token("gateway", vo=lhcb.VO, site=str(queue["Site"])), dict(queue)


def _traffic(stage: Stage, seconds: float) -> Iterator[tuple[Result, int]]:
    """All at the same time; a line for each kind of request, and how many jobs it submitted."""
    url = stage.service.url
    kinds = (
        (partial(_submit, stage.user), 4, _JOBS / _A_CALL),
        (partial(_work, stage.pilots), 50, 3 * _JOBS),
        (partial(_beat, stage.held), 50, _BEATS),
        (partial(_poll, stage.pilots), 20, _POLLS),
        (partial(_look, stage.user), 4, _PAGES),
    )
    http_load.get_ready(len(kinds))
    before = stage.service.cpu_seconds()
    running = [
        http_load.begin(url, script, connections=connections, seconds=seconds, per_second=rate)
        for script, connections, rate in kinds
    ]
    loads = [each.result() for each in running]
    cpu = stage.service.cpu_seconds() - before
    for load in loads:
        errors = load.errors
        for kind, latencies in load.by_kind.items():
            yield _line(kind, load, latencies, errors), _A_CALL * len(latencies) * (kind == "submit")
            errors = 0
    yield Result(values={"what": "cores that the service used", "a second": round(cpu / seconds, 2)}), 0


def _line(kind: str, load: Load, latencies: Sequence[float], errors: int) -> Result:
    ms = {share: round(1000 * quantile(latencies, share), 2) for share in _SHARES}
    return Result(
        values={
            "what": kind,
            "answers": len(latencies),
            "a second": round(len(latencies) / load.seconds, 1),
            "p50 ms": ms[0.5],
            "p99 ms": ms[0.99],
        },
        flaws=[f"{kind}: {errors} requests failed: {load.describe_errors()}"] if errors else [],
        points=[Point(plot="mixed", line=kind, x=share, y=each) for share, each in ms.items()],
    )


def _beside_matches(stage: Stage, seconds: float) -> Iterator[Result]:
    """The target: heartbeats as fast as they are answered, while jobs are matched."""
    url = stage.service.url
    matching = http_load.begin(
        url, partial(_take, stage.gateways), connections=_TAKING, seconds=seconds, per_second=_MATCHES
    )
    beating = http_load.begin(url, partial(_beat, stage.held), connections=64, seconds=seconds)
    matches, beats = matching.result(), beating.result()
    yield Result(
        values={
            "what": f"heartbeats beside {matches.per_second:.0f} matches/s",
            "answers": len(beats.latencies),
            "a second": round(beats.per_second, 1),
            "p50 ms": beats.quantile_ms(0.5),
            "p99 ms": beats.quantile_ms(0.99),
        },
        targets={"heartbeats": beats.per_second * min(1.0, matches.per_second / (_ENOUGH * _MATCHES))},
        note=f"beside {matches.per_second:.0f} matches/s",
        flaws=[
            f"{each.errors} {what} failed: {each.describe_errors()}"
            for what, each in (("heartbeats", beats), ("requests for work", matches))
            if each.errors
        ],
    )


def _beside_submissions(stage: Stage, seconds: float) -> Iterator[tuple[Result, int]]:
    """The target: matches as fast as they are answered beside submissions; with how many jobs these had."""
    url = stage.service.url
    submitting = http_load.begin(
        url, partial(_submit, stage.user), connections=4, seconds=seconds, per_second=_SUBMITTED / _A_CALL
    )
    matching = http_load.begin(url, partial(_take, stage.gateways), connections=_TAKING, seconds=seconds)
    calls, matches = submitting.result(), matching.result()
    result = Result(
        values={
            "what": f"matches beside {_A_CALL * calls.per_second:.0f} submitted jobs/s",
            "answers": len(matches.latencies),
            "a second": round(matches.per_second, 1),
            "p50 ms": matches.quantile_ms(0.5),
            "p99 ms": matches.quantile_ms(0.99),
        },
        targets={"matches beside submissions": matches.quantile_ms(0.99)},
        note=f"{matches.per_second:.0f} matches/s beside {_A_CALL * calls.per_second:.0f} jobs/s",
        flaws=[
            f"{each.errors} {what} failed: {each.describe_errors()}"
            for what, each in (("submissions", calls), ("requests for work", matches))
            if each.errors
        ],
    )
    yield result, _A_CALL * len(calls.latencies)


def request(kind: str, method: str, path: str, token: str, body: Any = None) -> http_load.Named:
    """A request to the service."""
    content = http_load.request(method, _API + path, token=token, body=body, headers=http_load.PATIENT)
    return http_load.named(kind, content)


def ask(pilot: Pilot, kind: str, **more: object) -> http_load.Named:
    """A pilot's request for work."""
    token, offer = pilot
    body = {**offer, "request_id": uuid.uuid4().hex, **more}
    return request(kind, "POST", "/matcher/requestJob", token, body)


def poll(pilot: Pilot) -> http_load.Named:
    """A pilot's request for work that finds none: its slot ends too soon."""
    return ask(pilot, "poll, nothing", CPUTime=_TOO_SHORT)


def read_matches(answer: http_load.Answer) -> list[dict[str, Any]]:
    """The jobs of an answer; LookupError: none, where there are enough jobs for all."""
    said = answer.json()
    if not said.get("matches"):
        raise LookupError(f"no job: {said.get('reason', said)}")
    return list(said["matches"])


def submission(user: str, asked: RequirementClass, jobs: int) -> http_load.Named:
    """The request that submits so many jobs of a class."""
    said = lhcb.description(asked)
    job = {name: value for name, value in said.items() if name not in ("Owner", "OwnerGroup")}
    return request("submit", "POST", "/jobs", user, {"jobs": [job] * jobs})


def _begin(pilots: Sequence[Pilot], number: int) -> Conversation:
    """Take a job and start it; its id with the pilot's token."""
    answer = yield ask(pilots[number], "match")
    [match] = read_matches(answer)
    yield request("start", "POST", f"/leases/{match['lease']}/start", pilots[number][0], {})
    return match["job_id"], pilots[number][0]


def _work(pilots: Sequence[Pilot], number: int) -> Conversation:
    """Job after job: asked for, started, finished."""
    for pilot in itertools.cycle(pilots[number::50]):
        answer = yield ask(pilot, "match")
        for match in read_matches(answer):
            lease = f"/leases/{match['lease']}"
            yield request("start", "POST", f"{lease}/start", pilot[0], {})
            yield request("finish", "POST", f"{lease}/finish", pilot[0], {"status": "Done", "exit_code": 0})


def _take(pilots: Sequence[Pilot], number: int) -> Conversation:
    for pilot in itertools.cycle(pilots[number::_TAKING]):
        read_matches((yield ask(pilot, "match")))


def _poll(pilots: Sequence[Pilot], number: int) -> Conversation:
    for pilot in itertools.cycle(pilots[number::20]):
        yield poll(pilot)


def _beat(held: Sequence[Held], number: int) -> Conversation:
    """One running job after the other; no job says anything twice within a run, as there are so many."""
    for token, lease in itertools.cycle(held[number::50]):
        yield request(
            "heartbeat", "POST", f"/leases/{lease}/heartbeat", token, {"progress": "event 17 of 400"}
        )


def _submit(user: str, number: int) -> Conversation:
    drawn = lhcb.requirement_classes(lhcb.BASE)
    for asked in itertools.cycle(drawn[number::4]):
        yield submission(user, asked, _A_CALL)


def _look(user: str, _number: int) -> Conversation:
    while True:
        answer = yield request("page: list", "GET", "/jobs?status=Running&limit=100", user)
        yield request("page: summary", "GET", "/jobs/summary?by=status,site", user)
        for job in answer.json()["jobs"][:1]:
            yield request("page: job", "GET", f"/jobs/{job['job_id']}", user)
