"""The most expensive requests of users, pilots and administrators: processor time and memory of the service.

Each is sent once, and nothing of it is cached. Refused requests count, too: reading them costs.
"""

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import httpx

from benchmarks import large, lhcb, servers, services
from benchmarks.results import Result
from benchmarks.services import Service
from cs_config.options import bounds
from taskqueue.db import database

#: Seconds of processor time, and megabytes, that one request may take.
_SECONDS, _MEGABYTES = 1.0, 50.0
#: Bytes of a body that is nearly as large as it may be.
_NEARLY = bounds.BODY - 200
_QUEUES = [f"{each['Site']}/{each['GridCE']}/{each['Queue']}" for each in lhcb.queues()]
_USER = {"vo": lhcb.VO, "user": "lbprods", "group": "lhcb_prmgr"}
_ROLES: Mapping[str, Mapping[str, str]] = {
    "user": _USER,
    "vo_admin": {"vo": lhcb.VO, "user": "eve"},
    "site_admin": {"site": lhcb.SITES[0], "user": "sam"},
    "pilot": {"vo": lhcb.VO, "queue": _QUEUES[0], "stamp": "slot-1"},
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Worst:
    """A request that costs much."""

    what: str
    role: str
    method: str
    path: str
    body: bytes = b""


def _submission(what: str, jobs: object, *, path: str = "/jobs") -> Worst:
    return Worst(what=what, role="user", method="POST", path=path, body=json.dumps(jobs).encode())


def _ask(what: str, path: str, *, role: str = "user") -> Worst:
    return Worst(what=what, role=role, method="GET", path=path)


def _list_requests() -> Iterator[Worst]:
    zeros = b'{"jobs":[{"Executable":"x","Values":[%b]}]}'
    job = {"Executable": "/bin/true"}
    files = [f"LFN:/lhcb/MC/2026/ALLSTREAMS.DST/00231457/0000/00231457_{n:08}_1.dst" for n in range(44_000)]
    tags = [[f"tag{(job + n) % 512:03}-{job}" for n in range(140)] for job in range(1_000)]
    terms = " && ".join(f"other.MaxRAM > {n} || other.Tag{n} == {n}" for n in range(180))
    yield Worst(
        what="3.5 MB of zeros",
        role="user",
        method="POST",
        path="/jobs",
        body=zeros % (b"0," * (_NEARLY // 2) + b"0"),
    )
    yield _submission("a text of 3.5 MB", {"jdl": "Executable = x; " + "A" * _NEARLY})
    yield _submission("a job with 44,000 input files", {"jobs": [job | {"InputData": files}]})
    yield _submission("1,000 equal jobs", {"jobs": [job] * 1_000})
    yield _submission(
        "1,000 jobs of different CPUTime", {"jobs": [job | {"CPUTime": 1_000 + n} for n in range(1_000)]}
    )
    yield _submission("1,000 jobs of 140 tags each", {"jobs": [job | {"Tag": each} for each in tags]})
    yield _submission(
        "1,000 jobs of different Requirements",
        {"jobs": [job | {"Requirements": {"MaxRAM": 1_000 + n}} for n in range(1_000)]},
    )
    yield _submission(
        "10,000 jobs of one description", {"jdl": 'Executable = "x"; Arguments = "%n"; Parameters = 10000;'}
    )
    yield _submission(
        "a long expression is explained", {"jobs": [job | {"Requirements": terms}]}, path="/explain"
    )
    yield _ask(
        "numbers of jobs by name, type, group and site", "/jobs/summary?by=job_name,job_type,job_group,site"
    )
    yield _ask("a page of 1,000 jobs", "/jobs?limit=1000")
    yield _ask("a page of 1,000 pools", "/pools?limit=1000")
    yield _ask("the sites", "/sites")
    yield _ask("a queue is explained", f"/resources/queues/{_QUEUES[0]}/explain")
    for role, some in (("user", _QUEUES[:20]), ("site_admin", _QUEUES[:4]), ("pilot", _QUEUES[:1])):
        body = json.dumps({"queues": some, "flags": role != "pilot"}).encode()
        path = "/matcher/getSubmitPoolsForQueue"
        yield Worst(what=f"the pools of {len(some)} queues", role=role, method="POST", path=path, body=body)
    place = dict(lhcb.queues()[0])
    for what, more in (
        ("1,000 jobs for a pilot", {"count": 1_000}),
        ("a pilot that states 20,000 tags", {"Tag": [f"t{n}" for n in range(20_000)]}),
    ):
        body = json.dumps(place | more).encode()
        yield Worst(what=what, role="pilot", method="POST", path="/matcher/requestJob", body=body)


def run(*, quick: bool) -> Iterator[Result]:
    """A line for each request."""
    waiting = 20_000 if quick else 1_000_000
    with servers.postgres() as server, servers.fresh_database(server, "worst") as url:
        engine = database.connect(url)
        large.fill(engine, waiting=waiting)
        engine.dispose()
        with services.serving(url, lhcb.tree()) as service:
            for worst in _list_requests():
                yield _measure(service, worst)


def _measure(service: Service, worst: Worst) -> Result:
    service.await_rest()
    token = service.token(worst.role, **_ROLES[worst.role])
    head = {"Authorization": f"Bearer {token}", "Content-Type": "application/json"}
    before = service.cpu_seconds(), service.reset_peak()
    answer = httpx.request(
        worst.method, f"{service.url}/api/v1{worst.path}", content=worst.body, headers=head, timeout=300
    )
    seconds, megabytes = service.cpu_seconds() - before[0], service.peak_megabytes() - before[1]
    return Result(
        values={
            "what": worst.what,
            "as": worst.role,
            "status": answer.status_code,
            "CPU s": round(seconds, 2),
            "MB": round(megabytes),
            "allowed": f"{_SECONDS:g} s, {_MEGABYTES:g} MB",
            "ratio": round(max(seconds / _SECONDS, megabytes / _MEGABYTES), 2),
        }
    )
