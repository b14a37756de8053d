"""Four matcher processes on PostgreSQL under full load: limits and throttles hold at every moment.

One site has a running limit of 7 and a matching delay, the second a throttle of level 2, the third
`brokering` and `level0` at its queue. Jobs start, finish and are killed, pilots die, matcher processes are
killed, gateways advertise late, twice and out of order. Afterwards the log, the tables and what the players
saw are checked. By hand, for longer than the test does:

    python -m tests.acceptance.load --minutes 5
"""

import argparse
import json
import logging
import os
import random
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any

import httpx
import psutil
from sqlalchemy import Engine, text

from examples.servers.starting import free_port
from pilotage.service.auth import keys
from pilotage.service.auth.callers import grant
from pilotage.service.auth.tokens import Tokens
from pilotage.service.services import utc_now
from taskqueue.db import database
from tests.acceptance import load_record
from tests.acceptance.load_players import Gateway, Pilot, Play, User
from tests.acceptance.load_record import Bounds, Step, Truth
from tests.acceptance.processes import PILOTAGE, Supervised
from tests.postgres import Postgres

log = logging.getLogger(__name__)

LIMITED, LEVEL2, BROKERING = "LCG.Limited.org", "LCG.Level2.org", "LCG.Broker.org"
KIND, MOST = "Merge", 7
SLOW, SECONDS, BURST = "Slow", 0.5, 3
KINDS = ("Merge", "Merge", "User", "Slow")
BOUNDS = {
    LIMITED: Bounds(),
    LEVEL2: Bounds(jobs=6, busy=4),
    BROKERING: Bounds(jobs=6, submitting=2),
}
#: Pilots at each site: more than the site takes.
PILOTS = {LIMITED: 12, LEVEL2: 8, BROKERING: 8}
RESOURCES = f"""
Resources:
  Sites:
    {LIMITED}: {{CEs: {{ce: {{Queues: {{q: {{CPUTime: 1000000}}}}}}}}}}
    {LEVEL2}:
      Throttle: {{Policy: level2, MaxJobs: 6, MaxSubmittingAndOutputGatheringJobs: 4}}
      CEs: {{ce: {{Queues: {{q: {{CPUTime: 1000000}}}}}}}}
    {BROKERING}:
      Throttle: {{Policy: brokering, MaxJobs: 6, MaxSubmittingJobs: 3}}
      CEs:
        ce: {{Queues: {{q: {{CPUTime: 1000000, Throttle: {{Policy: level0, MaxSubmittingJobs: 2}}}}}}}}
Operations:
  Defaults:
    JobScheduling:
      MaxRescheduling: 1000
      RescheduleDelays: [0]
      RunningLimit: {{{LIMITED}: {{JobType: {{{KIND}: {MOST}}}}}}}
      MatchingDelay:
        {LIMITED}: {{JobType: {{{SLOW}: {SECONDS}}}, Burst: {{JobType: {{{SLOW}: {BURST}}}}}}}
    Leases: {{Time: 5, StalledTime: 5, StalledGrace: 0.5}}
    Limits: {{RequestsPerSecond: 100000}}
Registry:
  VO: {{load: {{}}}}
"""
STEPS = """
SELECT job_log.job_id, job_log.to_status, attempts.site, jobs.job_type AS kind
FROM job_log JOIN jobs ON jobs.job_id = job_log.job_id
LEFT JOIN attempts ON attempts.job_id = job_log.job_id AND attempts.epoch = job_log.epoch
WHERE job_log.from_status IS NULL OR job_log.from_status <> job_log.to_status
ORDER BY job_log.log_id
"""
SLOW_MATCHES = """
SELECT opened_at FROM attempts JOIN jobs USING (job_id) WHERE attempts.site = :site AND job_type = :kind
"""
DONE_TWICE = """
SELECT job_id FROM job_log WHERE to_status = 'Done' AND from_status <> 'Done'
GROUP BY job_id HAVING count(*) > 1
UNION SELECT job_id FROM attempts WHERE closed_as = 'finished' GROUP BY job_id HAVING count(*) > 1
"""
#: Seconds by which the clock of a claim may differ from the moment at which it took its token.
SLACK = 2.0


@dataclass
class Installation:
    """Four service processes behind one port, and the agents."""

    home: Path
    database_url: str
    processes: list[Supervised] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.home.mkdir(parents=True, exist_ok=True)
        self.port = free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        self.env = {"PILOTAGE_HOME": str(self.home), "PILOTAGE_DATABASE_URL": self.database_url}

    def start(self) -> None:
        resources = self.home / "resources.yaml"
        resources.write_text(RESOURCES)
        self._run("db", "upgrade")
        self._add("serve", "--workers", "4", "--port", str(self.port), "--resources", str(resources))
        self._add("agent", "pools", "lost-jobs", "sweep")
        deadline = time.monotonic() + 90
        while not self._ready():
            if time.monotonic() > deadline:
                raise TimeoutError(f"the service did not get ready; see the logs in {self.home}")
            time.sleep(0.2)

    def token(self, role: str, **wishes: str) -> str:
        """As the installation mints it, without a process for each."""
        tokens = Tokens(keys.load_or_create(self.home / "signing-key.pem"))
        return tokens.mint(grant(role=role, vo="load", **wishes), now=utc_now())[0]

    def kill_matcher(self, dice: random.Random) -> None:
        """Kill one of the four; it is started again."""
        workers = [
            each
            for each in psutil.Process(self.processes[0].pid).children()
            if any("spawn_main" in word for word in each.cmdline())
        ]
        if workers:
            dice.choice(workers).kill()

    def stop(self) -> None:
        for process in reversed(self.processes):
            process.stop()

    def _add(self, *arguments: str) -> None:
        process = Supervised(arguments[0], arguments, env=self.env, log=self.home / f"{arguments[0]}.log")
        process.start()
        self.processes.append(process)

    def _run(self, *arguments: str) -> str:
        env = {**os.environ, **self.env}
        done = subprocess.run(
            [str(PILOTAGE), *arguments], env=env, capture_output=True, check=True, timeout=120
        )
        return done.stdout.decode()

    def _ready(self) -> bool:
        try:
            return httpx.get(f"{self.url}/readyz", timeout=5).is_success
        except httpx.TransportError:
            return False


@dataclass
class Run:
    """What came of a run."""

    play: Play
    user: User
    steps: Sequence[Step]
    flaws: list[str]

    def numbers(self) -> dict[str, Any]:
        """For people."""
        return {
            "jobs": len(self.user.job_ids),
            "matches": dict(Counter(held.site for held in self.play.helds)),
            "lost": sum(held.lost for held in self.play.helds),
            "advertisements": len(self.play.adverts),
            f"most {KIND} at {LIMITED}": max((n for _, n in self._crowd()), default=0),
            **{f"most at {site}": dict(truth.most) for site, truth in self.play.truths.items()},
            "refusals": {" ".join(key): number for key, number in sorted(self.play.reasons.items())},
        }

    def _crowd(self) -> Iterator[tuple[int, int]]:
        return load_record.crowd(self.steps, LIMITED, KIND)


def run(
    installation: Installation,
    engine: Engine,
    *,
    seconds: float,
    kill_every: float,
    seed: int,
    backlog: int = 100,
) -> Run:
    """Play for so long, then let everything come to rest, then look at what was.

    Args:
        installation: Is started.
        engine: Of its database.
        seconds: That jobs are submitted and things go wrong.
        kill_every: Seconds between two matcher processes that are killed.
        seed: Of the players' dice.
        backlog: Jobs that are kept waiting.
    """
    truths = {site: Truth(bounds) for site, bounds in BOUNDS.items()}
    play = Play(url=installation.url, truths=truths, random=random.Random(seed))
    user = User(play, installation.token("user", user="ada"), KINDS, backlog=backlog)
    threads = [play.thread(each.run, name) for name, each in _players(installation, play, user)]
    for event in (play.asking, play.playing, play.tormenting):
        event.set()
    for thread in threads:
        thread.start()
    _torment(installation, play, seconds=seconds, every=kill_every)
    play.tormenting.clear()
    try:
        _rest(engine, seconds=120)
    except TimeoutError as error:
        play.errors.append(str(error))
    play.playing.clear()
    for thread in threads:
        thread.join(30)
    return _judged(installation, engine, play, user)


def _players(installation: Installation, play: Play, user: User) -> Iterator[tuple[str, Any]]:
    yield "user", user
    for site, number in PILOTS.items():
        token = installation.token("pilot", queue=f"{site}/ce/q")
        for each in range(number):
            yield f"pilot {each} at {site}", Pilot(play, token, f"{site}/ce/q", seed=each)
    for site, scopes in ((LEVEL2, (LEVEL2,)), (BROKERING, (BROKERING, f"{BROKERING}/ce/q"))):
        token = installation.token("gateway", site=site)
        yield f"gateway of {site}", Gateway(play, token, scopes, every=0.4, seed=len(scopes))


def _torment(installation: Installation, play: Play, *, seconds: float, every: float) -> None:
    end = time.monotonic() + seconds
    next_kill = time.monotonic() + every
    while time.monotonic() < end and not play.errors:
        time.sleep(0.1)
        if time.monotonic() > next_kill:
            installation.kill_matcher(play.random)
            next_kill = time.monotonic() + every


def _rest(engine: Engine, *, seconds: float) -> None:
    """Wait until no job is on its way any more."""
    deadline = time.monotonic() + seconds
    while set(counts := _statuses(engine)) - {"Done", "Killed", "Failed"}:
        if time.monotonic() > deadline:
            raise TimeoutError(f"not all jobs ended: {counts}")
        time.sleep(0.5)


def _statuses(engine: Engine) -> dict[str, int]:
    with database.reading(engine) as conn:
        rows = conn.execute(text("SELECT status, count(*) AS number FROM jobs GROUP BY status"))
        return {row.status: row.number for row in rows}


def _judged(installation: Installation, engine: Engine, play: Play, user: User) -> Run:
    killed = set(user.killed)
    for held in play.helds:
        held.lost = held.lost or held.job_id in killed
    with database.reading(engine) as conn:
        steps = [Step(**row._asdict()) for row in conn.execute(text(STEPS))]
        slow: list[datetime] = list(
            conn.execute(text(SLOW_MATCHES), {"site": LIMITED, "kind": SLOW}).scalars()
        )
        stored = {row.job_id: row.status for row in conn.execute(text("SELECT job_id, status FROM jobs"))}
        twice = conn.execute(text(DONE_TWICE)).scalars().all()
        waiting = conn.execute(text("SELECT count(*) FROM waiting_jobs")).scalar_one()
    flaws = list(play.errors)
    flaws += load_record.over_the_limit(steps, LIMITED, KIND, MOST)
    flaws += load_record.too_fast([at.timestamp() for at in slow], seconds=SECONDS, burst=BURST, slack=SLACK)
    for site, truth in play.truths.items():
        flaws += load_record.over_the_throttle(site, truth)
    flaws += load_record.matched_while_closed(play.helds, play.adverts, LEVEL2, 4)
    flaws += load_record.doubled(play.helds)
    flaws += [f"job {job_id} was done twice" for job_id in twice]
    flaws += [f"job {job_id} was lost" for job_id in user.job_ids if job_id not in stored]
    flaws += [
        f"job {job_id} is {status}"
        for job_id, status in stored.items()
        if status != "Done" and not (status == "Killed" and job_id in killed)
    ]
    flaws += [f"{waiting} rows wait although all is over"] if waiting else []
    flaws += _still_closed(installation, play)
    return Run(play, user, steps, flaws)


def _still_closed(installation: Installation, play: Play) -> Iterator[str]:
    """Nothing is there any more: after one advertisement all the room is free."""
    expected = {LEVEL2: 4, BROKERING: 3, f"{BROKERING}/ce/q": 2}
    for scope, room in expected.items():
        site = scope.partition("/")[0]
        with play.client(installation.token("gateway", site=site)) as client:
            Gateway(play, "", (scope,), every=0, seed=0).advertise(client)
            throttles = client.get(f"/sites/{site}").json()["throttles"]
        found = {each["scope"]: each["room"] for each in throttles}[scope]
        if found != room:
            yield f"{scope}: room for {found} although nothing is there, {room} would be right"


def main() -> int:
    """Run it by hand; 1 if something was not as it must be."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--minutes", type=float, default=5)
    parser.add_argument("--kill-every", type=float, default=15, help="seconds between kills of a matcher")
    parser.add_argument("--seed", type=int, default=int(time.time()))
    options = parser.parse_args()
    logging.basicConfig(level=logging.INFO, format="%(message)s")
    logging.getLogger("httpx").setLevel(logging.WARNING)
    home = Path(tempfile.mkdtemp(prefix="pilotage-load-"))
    home.chmod(0o755)
    with ExitStack() as stack:
        (home / "pg").mkdir()
        postgres = Postgres(home / "pg")
        postgres.start()
        stack.callback(postgres.stop)
        postgres.execute("CREATE DATABASE load")
        installation = Installation(home, postgres.url("load"))
        stack.callback(installation.stop)
        installation.start()
        engine = database.connect(installation.database_url)
        stack.callback(engine.dispose)
        seconds = options.minutes * 60
        done = run(installation, engine, seconds=seconds, kill_every=options.kill_every, seed=options.seed)
    log.info("%s", json.dumps(done.numbers(), indent=2))
    log.info("%d flaws, logs in %s", len(done.flaws), home)
    for flaw in done.flaws:
        log.error(flaw)
    return int(bool(done.flaws))


if __name__ == "__main__":
    sys.exit(main())
