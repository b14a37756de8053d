"""Requests for work of one VO beside attacks of another.

Attackers of one VO, with every role that it has, send what costs the service most, or hold what they got.
The pilots of another VO ask for work meanwhile. The same number of ordinary requests of the same kind takes
turns with each attack, so that both see the same machine: what is measured is what an attack costs others
beyond the ordinary traffic that it looks like.

    python -m benchmarks.hostile --seconds 2 --turns 2 "heads do not end" "wrong tokens"
"""

import argparse
import itertools
import json
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import cache, partial
from typing import Any

from sqlalchemy import Engine

from benchmarks import copies, http_load, large, lhcb, mixed, servers, services
from benchmarks.copies import Wanted
from benchmarks.http_load import Conversation, Held, Load
from benchmarks.results import Result, quantile
from benchmarks.services import Service
from cs_config import validate
from optimizers.submit import submission
from optimizers.submit.submitter import Submitter
from taskqueue.db import database

_VO = "biomed"  #: that is attacked
_API = "/api/v1"
_TURNS = 6
#: How long the attacked VO asks, in turns: what an attack leaves to do counts, too.
_AFTERMATH = 1.5
_PEOPLE = 8
#: Requests for work a second, and the connections that they come over.
_RATE, _CONNECTIONS = 100.0, 16
#: One request of these many is a small sandbox instead: its place may be taken, too.
_SANDBOX_EVERY = 50
_PLACES = tuple(f"{each['Site']}/{each['GridCE']}/{each['Queue']}" for each in lhcb.queues())
_JOB: dict[str, object] = {"Executable": "/bin/true"}

#: The request with a number of the holder of a token.
Make = Callable[[str, int], bytes]


@dataclass(frozen=True, slots=True, kw_only=True)
class Attack:
    """What attackers send, and what others would send in their place."""

    role: str
    hostile: Make
    honest: Make
    connections: int = 16
    per_second: float | None = None  #: of all of them; None: each connection sends one request in a turn


def _post(path: str, token: str, body: object) -> bytes:
    return http_load.request("POST", _API + path, token=token, body=body)


def _get(path: str, token: str) -> bytes:
    return http_load.request("GET", _API + path, token=token)


def _getting(path: str) -> Make:
    return lambda token, _number: _get(path, token)


def _posting(path: str, body: object) -> Make:
    return lambda token, _number: _post(path, token, body)


def _submitting(job: Callable[[int], dict[str, object]], jobs: int) -> Make:
    """So many jobs, with numbers that no request before had."""
    return lambda token, number: _post(
        "/jobs", token, {"jobs": [job(number * jobs + n) for n in range(jobs)]}
    )


def _explaining(requirements: str) -> Make:
    return _posting("/explain", {"jobs": [_JOB | {"Requirements": requirements}]})


@cache
def _build_texts(copied: int) -> str:
    """An expression that multiplies a text and copies the result again and again."""
    return f"size({'toLower(' * 110}strcat({', '.join(['other.Architecture'] * copied)}){')' * 110})>0"


@cache
def _compare_much() -> str:
    """An expression with as many terms as one may have."""
    return " && ".join(f"other.MaxRAM > {n} || other.Tag{n} == {n}" for n in range(180))


def _pools_of(token: str) -> bytes:
    return _post("/matcher/getSubmitPoolsForQueue", token, {"queues": _PLACES[:20]})


def _ask_for_work(token: str, number: int, **more: object) -> bytes:
    return _post("/matcher/requestJob", token, {**lhcb.queues()[number % _PEOPLE], **more})


def _change(path: str, values: int) -> Make:
    """Changes of so many values of the attackers' VO; each number is another change."""

    def make(token: str, number: int) -> bytes:
        section = {f"Option{n}": number for n in range(values)}
        edits = {"set": {f"Operations/{lhcb.VO}/Site{number % 2}": section}}
        return http_load.request("POST" if path else "PATCH", f"{_API}/config{path}", token=token, body=edits)

    return make


def _register(pilots: int) -> Make:
    def make(token: str, number: int) -> bytes:
        own = token[-12:]
        named = [{"stamp": f"{own}-{number}-{n}", "queue": _PLACES[0]} for n in range(pilots)]
        return _post("/pilots/registrations", token, {"pilots": named})

    return make


def _head(path: str, token: str, content_type: str, size: int) -> bytes:
    """Of a request with a body of so many bytes."""
    head = f"POST {_API}{path} HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {token}\r\n"
    return f"{head}Content-Type: {content_type}\r\nContent-Length: {size}\r\n\r\n".encode()


def _sandbox_head(token: str, size: int) -> bytes:
    return _head("/sandboxes", token, "application/x-tar", size)


def _sandbox(token: str, number: int) -> bytes:
    content = f"{number:0>1024}".encode()
    return _sandbox_head(token, len(content)) + content


def _zeros(token: str, _number: int) -> bytes:
    content = b'{"jobs":[{"Executable":"x","Values":[%b0]}]}' % (b"0," * 1_500_000)
    return _head("/jobs", token, "application/json", len(content)) + content


#: By what they are, for the table of what is bounded, too.
ATTACKS: Mapping[str, Attack] = {
    "a text is multiplied": Attack(
        role="user",
        hostile=lambda token, _number: _explaining(_build_texts(120))(token, 0),
        honest=_explaining("other.MaxRAM > 2000"),
        per_second=10,
    ),
    "an expression of many terms": Attack(
        role="user",
        hostile=lambda token, _number: _explaining(_compare_much())(token, 0),
        honest=_explaining("other.MaxRAM > 2000"),
        per_second=10,
    ),
    "40 long expressions are submitted": Attack(
        role="user",
        hostile=_submitting(lambda n: _JOB | {"Requirements": f"{_build_texts(30)} || {n} > 0"}, 40),
        honest=_submitting(lambda n: _JOB | {"Requirements": f"other.MaxRAM > {n % 9}"}, 40),
        per_second=4,
    ),
    "1,000 different Requirements": Attack(
        role="user",
        hostile=_submitting(lambda n: _JOB | {"Requirements": {"MaxRAM": 1_000 + n % 100_000}}, 1_000),
        honest=_submitting(lambda n: _JOB | {"Requirements": {"MaxRAM": 1_000 + n % 9}}, 1_000),
        per_second=2,
    ),
    "1,000 jobs of 140 tags": Attack(
        role="user",
        hostile=_submitting(lambda n: _JOB | {"Tag": [f"t{t}-{n % 1_000}" for t in range(140)]}, 1_000),
        honest=_submitting(lambda n: _JOB | {"Tag": [f"t{n % 9}"]}, 1_000),
        per_second=1,
    ),
    "1,000 jobs of different memory": Attack(
        role="user",
        hostile=_submitting(lambda n: _JOB | {"Memory": 1 + n % 100_000}, 1_000),
        honest=_submitting(lambda n: _JOB | {"Memory": 1 + n % 9}, 1_000),
        per_second=1,
    ),
    "3 MB of zeros": Attack(
        role="user", hostile=_zeros, honest=_submitting(lambda _n: _JOB, 1), per_second=4
    ),
    "a node states 16,000 characters": Attack(
        role="pilot",
        hostile=lambda token, n: _ask_for_work(token, n, NodeFacts={"CPUModel": "x" * 15_900}),
        honest=lambda token, n: _ask_for_work(token, n, NodeFacts={"CPUModel": "x" * 20}),
        per_second=50,
    ),
    "a pilot asks for 1,000 jobs": Attack(
        role="gateway",
        hostile=lambda token, n: _ask_for_work(token, n, count=1_000),
        honest=_ask_for_work,
        per_second=10,
    ),
    "answers are not read": Attack(
        role="user",
        hostile=lambda token, _n: Held(_pools_of(token)),
        honest=lambda token, _n: _pools_of(token),
        connections=64,
    ),
    "sandboxes come slowly": Attack(
        role="user",
        hostile=lambda token, _n: Held.trickling(_sandbox_head(token, 90_000_000), 11_500),
        honest=_sandbox,
        connections=64,
    ),
    "bodies come slowly": Attack(
        role="user",
        hostile=lambda token, _n: Held.trickling(_head("/jobs", token, "application/json", 3_000_000), 1),
        honest=_submitting(lambda _n: _JOB, 1),
        connections=64,
    ),
    "heads do not end": Attack(
        role="user",
        hostile=lambda token, _n: Held(_get("/jobs", token)[:-2]),
        honest=_getting("/jobs?limit=10"),
        connections=200,
    ),
    "streams of events": Attack(
        role="user",
        hostile=lambda token, _n: Held(_get("/jobs/events", token)),
        honest=_getting("/jobs/changes"),
        connections=160,
    ),
    "wrong tokens": Attack(
        role="user",
        hostile=lambda token, n: _get("/jobs", f"{token[:-8]}{n:0>8}"),
        honest=_getting("/jobs?limit=1"),
        per_second=100,
    ),
    "summaries of everything": Attack(
        role="user",
        hostile=_getting("/jobs/summary?by=job_name,job_type,job_group,site"),
        honest=_getting("/jobs/summary?by=status"),
        per_second=10,
    ),
    "long lists": Attack(
        role="user",
        hostile=_getting("/jobs?limit=1000"),
        honest=_getting("/jobs?limit=10"),
        per_second=20,
    ),
    "queues are explained": Attack(
        role="vo_admin",
        hostile=lambda token, n: _get(f"/resources/queues/{_PLACES[n % len(_PLACES)]}/explain", token),
        honest=lambda token, n: _get(f"/resources/queues/{_PLACES[n % len(_PLACES)]}", token),
        per_second=10,
    ),
    "changes of 3,000 values": Attack(
        role="vo_admin", hostile=_change("", 2_900), honest=_change("", 1), per_second=2
    ),
    "previews of 3,000 values": Attack(
        role="vo_admin", hostile=_change("/preview", 2_900), honest=_change("/preview", 1), per_second=4
    ),
    "pilots are registered by the hundred": Attack(
        role="director", hostile=_register(100), honest=_register(1), per_second=10
    ),
}


@dataclass(slots=True)
class _Side:
    """What the attacked VO saw in the turns of one side."""

    latencies: list[float] = field(default_factory=list)  #: of requests for work
    longest: float = 0.0  #: of any request
    faults: list[str] = field(default_factory=list)

    def add(self, load: Load) -> None:
        """One turn more."""
        self.latencies += load.by_kind["match"]
        self.longest = max(self.longest, *load.latencies, 0.0)
        if load.errors:
            self.faults.append(f"{load.errors} requests of the other VO failed: {load.describe_errors()}")

    @property
    def p99_ms(self) -> float:
        """Milliseconds."""
        return round(1000 * quantile(self.latencies, 0.99), 1)


def run(*, quick: bool) -> Iterator[Result]:
    """A line for each attack."""
    seconds, waiting = (2.0, 20_000) if quick else (10.0, 1_000_000)
    yield from measure(list(ATTACKS), seconds=seconds, waiting=waiting)


def measure(names: Sequence[str], *, seconds: float, waiting: int, turns: int = _TURNS) -> Iterator[Result]:
    """A line for each of these attacks, of so many turns."""
    with servers.postgres() as server, servers.fresh_database(server, "hostile") as url:
        engine = database.connect(url)
        large.fill(engine, waiting=waiting)
        _fill(engine, round(_RATE * (2 + 4 * turns * len(names) * seconds)))
        engine.dispose()
        with services.serving(url, _tree()) as service:
            http_load.get_ready(2)
            victims = _Victims(service)
            victims.ask(1.0).result()
            for name in names:
                yield _measure(service, victims, name, seconds=seconds, turns=turns)


def _tree() -> str:
    """The configuration of the VO of attackers, with another VO at the same sites."""
    tree = json.loads(lhcb.tree())
    tree["Registry"]["VO"][_VO] = {}
    tree["Registry"]["Groups"]["biomed_user"] = {"VO": _VO, "Properties": ["NormalUser"]}
    return json.dumps(tree)


def _fill(engine: Engine, jobs: int) -> None:
    """So many jobs of the attacked VO, which any pilot may have."""
    submitter = Submitter(subject="bench", vo=_VO, owner="bea", operator=True)
    job = _JOB | {"VO": _VO, "Owner": "bea", "OwnerGroup": "biomed_user", "CPUTime": 1_000}
    stored = submission.submit(engine, validate.parse(_tree()), submitter, [job], now=datetime.now(UTC))
    copies.store(engine, [Wanted(original=stored.job_ids[0], copies=jobs)])


class _Victims:
    """Gateways of the attacked VO, which may hold any number of jobs, and one of its users."""

    def __init__(self, service: Service) -> None:
        queues = itertools.islice(lhcb.queues(), _CONNECTIONS)
        gateways = [(service.token("gateway", vo=_VO, site=str(each["Site"])), dict(each)) for each in queues]
        user = service.token("user", vo=_VO, user="bea", group="biomed_user")
        self._script = partial(_work, gateways, user)
        self._url = service.url

    def ask(self, seconds: float) -> Future[Load]:
        """Ask for so long."""
        return http_load.begin(
            self._url, self._script, connections=_CONNECTIONS, seconds=seconds, per_second=_RATE
        )


def _work(gateways: Sequence[mixed.Pilot], user: str, number: int) -> Conversation:
    for turn in itertools.count(number):
        if turn % _SANDBOX_EVERY:
            mixed.read_matches((yield mixed.ask(gateways[number], "match")))
        else:
            yield http_load.named("sandbox", _sandbox(user, turn))


def _measure(service: Service, victims: _Victims, name: str, *, seconds: float, turns: int) -> Result:
    sides = {False: _Side(), True: _Side()}
    attack = ATTACKS[name]
    tokens = [_mint(service, attack.role, number) for number in range(_PEOPLE)]
    for turn in range(turns):
        for is_hostile in (True, False) if turn % 2 else (False, True):
            script = partial(_send, name, tokens, is_hostile=is_hostile, turn=turn)
            rate = attack.per_second or attack.connections / seconds
            service.await_rest()
            others = http_load.begin(
                service.url, script, connections=attack.connections, seconds=seconds, per_second=rate
            )
            sides[is_hostile].add(victims.ask(_AFTERMATH * seconds).result())
            others.result()
    beside, alone = sides[True], sides[False]
    ratio = beside.p99_ms / max(alone.p99_ms, 0.1)
    return Result(
        values={
            "what": name,
            "as": attack.role,
            "p99 ms": beside.p99_ms,
            "beside ordinary requests": alone.p99_ms,
            "ratio": round(ratio, 2),
            "longest ms": round(1000 * beside.longest),
        },
        targets={"hostile": ratio, "hostile longest": 1000 * beside.longest},
        note=name,
        flaws=[*beside.faults, *alone.faults],
    )


def _mint(service: Service, role: str, number: int) -> str:
    """The token of an attacker."""
    wishes: Mapping[str, Mapping[str, Any]] = {
        "user": {"user": f"mallory{number}", "group": lhcb.OWNERS[-1][1]},
        "vo_admin": {"user": f"eve{number}"},
        "pilot": {"queue": _PLACES[number], "stamp": f"slot-{number}"},
        "gateway": {"site": lhcb.queues()[number]["Site"]},
        "director": {},
    }
    return service.token(role, vo=lhcb.VO, **wishes[role])


def _send(name: str, tokens: Sequence[str], number: int, *, is_hostile: bool, turn: int) -> Conversation:
    attack = ATTACKS[name]
    make = attack.hostile if is_hostile else attack.honest
    for count in itertools.count(2 * turn + is_hostile, 2 * _TURNS):
        yield make(tokens[number % len(tokens)], count * attack.connections + number)


def main() -> int:
    """Measure the attacks that are named, or all, for as long as one wants; 1 if the other VO was refused."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.hostile", description="Attacks, by their names."
    )
    parser.add_argument("attacks", nargs="*", metavar="ATTACK", help=f"of {'; '.join(ATTACKS)}")
    parser.add_argument("--seconds", type=float, default=10.0, metavar="S", help="of each side in each turn")
    parser.add_argument("--turns", type=int, default=_TURNS, metavar="N", help=f"at most {_TURNS}")
    parser.add_argument("--waiting", type=int, default=1_000_000, metavar="N", help="jobs that wait")
    options = parser.parse_args()
    if unknown := set(options.attacks) - ATTACKS.keys():
        parser.error(f"no such attack: {', '.join(sorted(unknown))}; there are {'; '.join(ATTACKS)}")
    if not 1 <= options.turns <= _TURNS:
        parser.error(f"--turns {options.turns}: allowed are 1 to {_TURNS}")
    flaws = 0
    measured = measure(
        options.attacks or list(ATTACKS),
        seconds=options.seconds,
        waiting=options.waiting,
        turns=options.turns,
    )
    for result in measured:
        print(json.dumps(result.values), *result.flaws, sep="\n  ", flush=True)
        flaws += len(result.flaws)
    return int(flaws > 0)


if __name__ == "__main__":
    sys.exit(main())
