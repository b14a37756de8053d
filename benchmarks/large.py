"""An installation that people look at: many jobs wait, in pools and without, as many are over or run."""

from collections.abc import Mapping, Sequence
from itertools import islice
from typing import Any

import httpx
from sqlalchemy import Engine, text

from benchmarks import copies, lhcb, mixed, population
from benchmarks.copies import Wanted
from benchmarks.services import Service
from cs_config import validate
from taskqueue.db import database

_CLASSES = 1_000
_POOLS = 100
_PILOTS = 40
#: More than any queue has.
_TOO_MUCH = 1_000_000
#: What the agents would have counted by now.
_COUNTED = (
    text("""
        INSERT INTO job_stocks (vo, status, jobs)
        SELECT vo, status, count(*) FROM jobs WHERE status IN ('Waiting', 'Running') GROUP BY vo, status
    """),
    text("""
        INSERT INTO log_readers (name, counted, noted, under_way)
        SELECT name, log_id, log_id, '{}' FROM (VALUES ('flows'), ('use'), ('waits')) AS readers (name),
        (SELECT max(log_id) AS log_id FROM job_log) AS last
    """),
)


def fill(engine: Engine, *, waiting: int) -> None:
    """So many that wait, half of them in a hundred pools, one of which has no queue."""
    population.fill(engine, classes=_CLASSES, waiting=waiting // 2)
    described = [
        lhcb.description(each) | {"Requirements": {"MaxRAM": 1_000 + number}}
        for number, each in enumerate(lhcb.requirement_classes(_POOLS))
    ]
    described[0]["Requirements"] = {"MaxRAM": _TOO_MUCH}
    firsts = population.submit(engine, validate.parse(lhcb.tree()), described)
    _copy(engine, firsts, waiting // 2 // _POOLS)


def lead(engine: Engine, service: Service, *, finished: int, running: int) -> None:
    """So many that are over, and so many that run: copies of jobs that pilots took."""
    with httpx.Client(base_url=f"{service.url}/api/v1", timeout=60) as client:
        taken = [_take(client, pilot) for pilot in islice(mixed.pilots(service), _PILOTS)]
        over, alive = taken[::2], taken[1::2]
        for token, match in over:
            _say(client, token, match, "finish", {"status": "Done", "exit_code": 0})
    for some, wanted in ((over, finished), (alive, running)):
        _copy(engine, [match["job_id"] for _, match in some], wanted // len(some), has_attempts=True)
    with database.writing(engine) as conn:
        conn.execute(text("SET LOCAL statement_timeout = 0"))
        for statement in _COUNTED:
            conn.execute(statement)
    population.settle(engine)


def _copy(engine: Engine, originals: Sequence[int], each: int, *, has_attempts: bool = False) -> None:
    wanted = [Wanted(original=one, copies=each) for one in originals]
    copies.store(engine, wanted, running=has_attempts)


def _take(client: httpx.Client, pilot: mixed.Pilot) -> tuple[str, Mapping[str, Any]]:
    token, offer = pilot
    answer = client.post("/matcher/requestJob", json=offer, headers=_as(token)).raise_for_status()
    [match] = answer.json()["matches"]
    _say(client, token, match, "start", {})
    return token, match


def _say(client: httpx.Client, token: str, match: Mapping[str, Any], what: str, body: object) -> None:
    client.post(f"/leases/{match['lease']}/{what}", json=body, headers=_as(token)).raise_for_status()


def _as(token: str) -> Mapping[str, str]:
    return {"Authorization": f"Bearer {token}"}
