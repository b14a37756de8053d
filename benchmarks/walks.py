"""Walks: how many functions and files of ours run for one request, and how many calls.

Counted with `sys.setprofile` in the thread that serves the request: each function of the packages below the
program once, by file and name; lambdas, comprehensions and module bodies are left out, and so is all of
`pilotage/`, since the walks begin behind HTTP. Counts do not depend on the machine or its load, so two trees
can be compared anywhere. The first request of a kind runs what later ones find in caches.
"""

import asyncio
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

from sqlalchemy import Engine

from agents import lost_jobs, pools
from benchmarks import servers
from benchmarks.population import NOW
from benchmarks.results import Result
from cs_config.editing import patch
from cs_config.editing.editor import ConfigEditor, Transactions
from cs_config.editing.permissions import Rights
from cs_config.editing.proposals import ConfigDraft
from cs_config.tree.configuration import Configuration
from cs_config.versions import store
from cs_config.versions.store import LiveConfiguration
from matcher.claim.async_claimer import AsyncClaimer
from matcher.claim.claim_thread import ClaimWorker
from matcher.claim.matcher import Matcher
from matcher.request import match_request
from matcher.request.match_request import MatchCaller, MatchRequest
from optimizers.chain import batch
from optimizers.submit import submission
from optimizers.submit.submitter import Submitter
from requirements.errors import PilotageError
from taskqueue.db import database

_ROOT = Path(__file__).parent.parent
_PACKAGES = ("requirements", "cs_config", "taskqueue", "optimizers", "matcher", "agents")
_VO = "lhcb"
_ADA = Submitter(subject="ada@lhcb", vo=_VO, owner="ada", owner_group="lhcb_user")
_GRID = """
Resources:
  Sites:
    LCG.A.ch:
      CEs: {ce: {Queues: {long: {Memory: 8000, SoftwareTag: [AppVersion1]}, short: {Memory: 2000}}}}
    LCG.B.ch:
      CEs: {ce: {Queues: {long: {Memory: 4000}}}}
Registry: {VO: {lhcb: {}}, Groups: {lhcb_user: {VO: lhcb, Users: [ada]}}}
"""
#: A parametric description with an expression, whose text nothing has seen before.
_JDL = """[
  Executable = "%s.sh"; Arguments = "-n %%(n)s"; JobName = "scan"; JobGroup = "walks"; CPUTime = 3600;
  Site = {"LCG.A.ch", "LCG.B.ch"}; OutputSandbox = {"std.out", "std.err"}; Priority = 3;
  Parameters.n = {1, 2}; Parameters = 2;
  Requirements = other.Memory >= 3000 && member("AppVersion1", other.SoftwareTag);
]"""
_PATIENCE = 60.0  # seconds
_CHANGED = "Resources/Sites/LCG.B.ch/CEs/ce/Queues/long/Memory"


@dataclass(slots=True)
class Walk:
    """The functions that ran."""

    functions: set[tuple[str, str]] = field(default_factory=set)  #: file and qualified name
    calls: int = 0

    @property
    def files(self) -> int:
        """How many files they are in."""
        return len({file for file, _ in self.functions})

    def note(self, code: CodeType) -> None:
        """Count a call of a function, if it is one of ours."""
        if code.co_name.startswith("<"):
            return
        file = _FILES.get(code.co_filename)
        if file is None:
            file = _FILES[code.co_filename] = _relative(code.co_filename)
        if file:
            self.functions.add((file, code.co_qualname))
            self.calls += 1


#: Paths of modules of the packages, relative to the repository; empty for all others.
_FILES: dict[str, str] = {}


def _relative(filename: str) -> str:
    path = Path(filename)
    inside = path.is_relative_to(_ROOT) and path.relative_to(_ROOT).parts[0] in _PACKAGES
    return str(path.relative_to(_ROOT)) if inside else ""


@contextmanager
def walking() -> Iterator[Walk]:
    """Count what this thread runs, and what the threads run that are started meanwhile."""
    walk = Walk()

    def profile(frame: FrameType, event: str, _: Any) -> None:
        if event == "call":
            walk.note(frame.f_code)

    threading.setprofile(profile)
    sys.setprofile(profile)
    try:
        yield walk
    finally:
        sys.setprofile(None)
        threading.setprofile(None)


def run(*, quick: bool) -> Iterator[Result]:
    """Each walk on SQLite, and a claim on PostgreSQL; quick is the same."""
    del quick  # it takes seconds
    with tempfile.TemporaryDirectory() as directory:
        url = f"sqlite:///{directory}/walks.db"
        database.upgrade(url)
        yield from _walk_on(url, "SQLite", _serve_alone)
    with servers.postgres() as server, servers.fresh_database(server, "walks") as url:
        yield from _walk_on(url, "PostgreSQL", _serve_in_loop)


#: Serves requests, one after the other, and yields the walk of each.
_Serve = Callable[[Engine, Matcher, list[MatchRequest]], list[Walk]]


def _walk_on(url: str, name: str, serve: _Serve) -> Iterator[Result]:
    engine = database.connect(url)
    try:
        config = _store_grid(engine)
        with walking() as first_of_pool:
            due = _submit(engine, config, "1")
        with walking() as worker:
            batch.optimize(engine, config, due, now=NOW)
        _submit(engine, config, "2")  # what is done once in a process is done now
        with walking() as later:
            _submit(engine, config, "3")
        matcher = Matcher(engine, lambda: config, lambda: NOW)
        matcher.refresh()
        claims = serve(engine, matcher, [_request(number) for number in range(2)])
        live = LiveConfiguration()
        with database.reading(engine) as conn:
            live.refresh(conn)
        editor = _editor(engine, live)
        with walking() as change:
            edits = patch.read_edits({_CHANGED: 5000})
            editor.store(ConfigDraft(version=config.version, edits=edits), message="")
        with walking() as refresh:
            pools.cycle(engine, live.current, now=NOW, holder="walks")
        lost_jobs.cycle(engine, live.current, now=NOW, holder="walks")
        with walking() as lost:
            lost_jobs.cycle(engine, live.current, now=NOW, holder="walks")
    finally:
        engine.dispose()
    for what, walk in (
        ("requestJob, the first of a pilot", claims[0]),
        ("requestJob, the second pilot of the queue", claims[1]),
        ("JDL to Waiting, pool known", later),
        ("JDL to Received, new pool", first_of_pool),
        ("Received to Waiting", worker),
        ("one value changed, stored and loaded", change),
        ("refresh of the pools after it", refresh),
        ("change and refresh together", _join(change, refresh)),
        ("lost jobs, none lost", lost),
    ):
        yield Result(
            values={
                "what": f"{what}, {name}",
                "functions": len(walk.functions),
                "files": walk.files,
                "calls": walk.calls,
            }
        )


def _join(*walks: Walk) -> Walk:
    functions = set[tuple[str, str]]().union(*(walk.functions for walk in walks))
    return Walk(functions=functions, calls=sum(walk.calls for walk in walks))


def _store_grid(engine: Engine) -> Configuration:
    with database.writing(engine) as conn:
        store.store_text(conn, _GRID, author="ada", message="", source="api", expected=None, now=NOW)
        return store.load_version(conn)


def _submit(engine: Engine, config: Configuration, name: str) -> list[int]:
    """Submit a job; return it if it is left for the optimizers."""
    return submission.submit(engine, config, _ADA, [_JDL % name], now=NOW).due


def _request(number: int) -> MatchRequest:
    """A pilot of a queue, as the service reads its request."""
    offer = {"Site": "LCG.A.ch", "GridCE": "ce", "Queue": "long", "CPUTime": 86_400, "MaxRAM": 8_000}
    return MatchRequest(
        presented=match_request.read_resource(offer),
        caller=MatchCaller(subject=f"pilot{number}", vos=frozenset({_VO})),
        deadline=time.monotonic() + _PATIENCE,
        cache_key="walks",
    )


def _serve_alone(engine: Engine, matcher: Matcher, requests: list[MatchRequest]) -> list[Walk]:
    """As the claim thread does, for what SQLite claims, and what needs more than one statement."""
    del engine
    walks = []
    for request in requests:
        with walking() as walk:
            [answer] = matcher.serve([request])
        if isinstance(answer, PilotageError) or not answer.claimed:
            raise AssertionError(f"no job was claimed: {answer}")
        walks.append(walk)
    return walks


def _serve_in_loop(engine: Engine, matcher: Matcher, requests: list[MatchRequest]) -> list[Walk]:
    """As on PostgreSQL: in the event loop, and by the claim thread what it leaves."""
    worker = ClaimWorker(engine, matcher)
    claimer = AsyncClaimer(engine, matcher, worker.give_back)
    walks = []

    async def serve() -> None:
        for request in requests:
            with walking() as walk:
                answer = await claimer.claim(request, lambda: False)
                if answer is None:
                    worker.start()
                    answer = await asyncio.wrap_future(worker.submit(request).future)
                    worker.stop()
            if not answer.matches:
                raise AssertionError(f"no job was claimed: {answer}")
            walks.append(walk)
        await claimer.close()

    asyncio.run(serve())
    return walks


def _editor(engine: Engine, live: LiveConfiguration) -> ConfigEditor:
    return ConfigEditor(
        transactions=Transactions(
            reading=partial(database.reading, engine),
            writing=partial(database.writing, engine),
            after_commit=database.after_commit,
            read_time=lambda _: NOW,
        ),
        live=live,
        clock=lambda: NOW,
        author="ada",
        rights=Rights(everything=True),
        audit=lambda *_: None,
        count_change=lambda: None,
    )
