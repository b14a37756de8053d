"""A campaign from its beginning to its report: players and faults, rest, checks."""

import hashlib
import io
import logging
import tarfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import psutil

from tests.acceptance.campaign import checks, record, site
from tests.acceptance.campaign.checks import Tables
from tests.acceptance.campaign.faults import Faults
from tests.acceptance.campaign.installation import Installation
from tests.acceptance.campaign.network import Network
from tests.acceptance.campaign.players import Administrator, Context, Pilot, Site, User
from tests.acceptance.campaign.record import History, Step, Truth

log = logging.getLogger(__name__)

#: Seconds until a changed limit holds in all processes; until a service that can store nothing is not ready.
_LIMIT_HOLDS, _NOTICED = 15.0, 10.0
#: Seconds after which the memory of a process grows no more.
_WARM = 300.0
_SAMPLED_EVERY = 0.5
#: Seconds that a campaign runs longer at most, until each site had a job.
_SLOW_MACHINE = 600.0


@dataclass(frozen=True, kw_only=True)
class Plan:
    """How a campaign is to run."""

    seed: int
    seconds: float  #: of faults
    directory: Path
    sqlite: bool = False
    pooler: bool = False  #: pgbouncer before PostgreSQL
    minimal: bool = False  #: simulated pilots only
    earlier: bool = False  #: a service of the last release beside
    faults_every: float = 5.0  #: seconds
    changes_every: float = 3.0  #: seconds between two changes of the configuration
    kinds: frozenset[str] | None = None  #: of faults, each at least once; None: all
    lost: float = 0.1  #: part of the answers that players throw away
    backlog: int = 40  #: jobs of each user that wait
    rest: float = 600.0  #: seconds at the end without a job that ends, after which it is stuck


@dataclass
class Report:
    """What came of a campaign."""

    numbers: dict[str, Any]
    flaws: list[str]
    history: History

    def describe(self, flaw: str) -> Iterator[str]:
        """A flaw with the shortest history that shows it."""
        yield flaw
        for event in self.history.shorten(flaw):
            yield f"    {event.at:8.2f} s  {event.who}: {event.what}"


@dataclass
class Campaign:
    """A run under way."""

    plan: Plan
    installation: Installation
    context: Context
    faults: Faults
    users: list[User] = field(default_factory=list)
    probes: list[tuple[float, float, str, bool]] = field(default_factory=list)
    samples: int = 0
    #: Seconds since the beginning, and bytes, of each process: of the largest that belongs to it.
    memory: dict[str, list[tuple[float, int]]] = field(default_factory=dict)
    busiest: int = 0  #: jobs of the limited kind at a time

    def __post_init__(self) -> None:
        self._over = threading.Event()
        self._began = time.monotonic()
        self._watching: list[threading.Thread] = []
        self._disturbers: set[str] = set()  #: names of threads that end with the disturbances
        self._seen: set[tuple[int, int]] = set()
        self._looked = self._began  #: the last look at what was seen began
        self._since = 0.0  #: the last fault was over
        self._on_full_nodes: frozenset[int] = frozenset()
        self._doubtful: Counter[str] = Counter()

    @property
    def tables(self) -> Tables:
        return Tables(self.installation.direct_url, patience=120)

    def run(self) -> Report:
        """Disturb for so long, let everything come to rest, then check."""
        try:
            return self._run()
        finally:  # nothing is started again any more
            self.faults.end()
            self._over.set()
            for thread in self._watching:
                thread.join(30)

    def _run(self) -> Report:
        threads = [self.context.make_thread(run, name) for name, run in self._list_threads()]
        self._watching = [
            self.context.make_thread(run, run.__name__)
            for run in (self._keep_alive, self._probe, self._sample)
        ]
        faults = self.context.make_thread(self.faults.run, "faults")
        self.context.working.set()
        self.context.disturbing.set()
        for thread in (*self._watching, *threads, faults):
            thread.start()
        self._disturb(faults)
        self.context.disturbing.clear()
        for thread in threads:  # what they have under way may still change the configuration
            if thread.name in self._disturbers:
                thread.join(_SLOW_MACHINE)
        self._rest()
        self.context.working.clear()
        for thread in threads:
            thread.join(300)
        flaws = list(self._list_flaws())
        for flaw in flaws:
            self.context.add_flaw(flaw)
        return Report(self._count(), self.context.flaws, self.context.history)

    def _list_threads(self) -> Iterator[tuple[str, Any]]:
        token = self.installation.token
        for name in ("ada", "bob"):
            user = User(
                self.context,
                name,
                token("user", user=name),
                backlog=self.plan.backlog,
                ledger=self.installation.ledger,
                real=not self.plan.minimal,
            )
            self.users.append(user)
            yield name, user.run
        for place, pilots in site.PILOTS.items():
            for number in range(pilots):
                name = f"pilot {number} at {place}"
                yield name, Pilot(self.context, name, token("pilot", queue=f"{place}/ce/q"), place).run
        for place, scopes in site.ADVERTISED.items():
            yield place, Site(self.context, place, token("gateway", site=place), scopes).run
        administrator = self._administrator()
        self._disturbers = {administrator.name, *(user.name for user in self.users)}
        yield administrator.name, administrator.run

    def _administrator(self) -> Administrator:
        token = self.installation.token("operator", user="root")
        return Administrator(self.context, "administrator", token, every=self.plan.changes_every)

    # While it runs

    def _disturb(self, faults: threading.Thread) -> None:
        """Cause faults as long as planned; on a slow machine until each chosen one was there.

        Then players make trouble alone until each site had a job after the last fault.
        """
        chosen = self.plan.kinds or frozenset()
        began = time.monotonic()
        self._wait(
            lambda: time.monotonic() > began + self.plan.seconds and chosen <= set(self.faults.done),
            self.plan.seconds + _SLOW_MACHINE,
        )
        self.faults.end()
        faults.join(_SLOW_MACHINE)
        self._since = time.monotonic()
        self._wait(lambda: not self._list_idle(), _SLOW_MACHINE)

    def _list_idle(self) -> list[str]:
        """Sites where no job was asked for and given out since the last fault: each fault must pass."""
        served = {held.site for held in list(self.context.helds) if held.asked > self._since}
        return sorted(set(site.BOUNDS) - served)

    def _wait(self, reached: Callable[[], bool], most: float) -> None:
        """Wait for so many seconds at most, and no longer when there are flaws; log numbers."""
        began, shown = time.monotonic(), 0.0
        while (passed := time.monotonic() - began) < most and not reached():
            if passed > self.plan.seconds and self.context.flaws:
                return
            if passed >= shown + 60:
                shown = passed
                numbers = self.context.operations, self.context.disturbances, self.faults.done
                log.info(
                    "%.0f min: %d requests, %d disturbances, %d faults, %d matches, %d anomalies",
                    *(passed / 60, *(each.total() for each in numbers)),
                    *(len(self.context.helds), len(self.context.flaws)),
                )
            time.sleep(0.5)

    def _keep_alive(self) -> None:
        while not self._over.wait(0.2):
            self.installation.keep_alive(tuple(self.faults.paused))

    def _probe(self) -> None:
        """Ask each service whether it is ready, and note the memory of each process."""
        while not self._over.wait(_SAMPLED_EVERY):
            for name in self.installation.services:
                sent = time.monotonic()
                is_ready = self.installation.is_ready(name)
                self.probes.append((sent, time.monotonic(), name, is_ready))
            for name, supervised in self.installation.processes.items():
                with suppress(psutil.Error, AssertionError):
                    process = psutil.Process(supervised.pid)
                    resident = max(each.memory_info().rss for each in (process, *process.children()))
                    self.memory.setdefault(name, []).append((time.monotonic() - self._began, resident))

    def _sample(self) -> None:
        """What must hold at every moment, by the tables; a database that is away is left alone."""
        while not self._over.wait(_SAMPLED_EVERY):
            with suppress(*checks.AWAY):
                tables = Tables(self.installation.direct_url, patience=5)
                self._check_limit(tables)
                found = set(checks.list_inconsistencies(tables))
                self.samples += 1
                for flaw in found:
                    self._doubtful[flaw] += 1
                    if self._doubtful[flaw] == 1:
                        self.context.add_flaw(flaw)

    def _check_limit(self, tables: Tables) -> None:
        before = time.monotonic()
        present = {
            (job_id, epoch)
            for job_id, epoch in tables.ask(
                "SELECT job_id, attempts.epoch FROM attempts JOIN jobs USING (job_id) "
                f"WHERE closed_at IS NULL AND attempts.site = '{site.LIMITED}' AND job_type = '{site.KIND}'"
            )
        }
        new, self._seen = present - self._seen, present
        self.busiest = max(self.busiest, len(present))
        limit = self._limit_in_force(self._looked)  # what is new may have come right after the last look
        self._looked = before
        if len(present) > site.MOST or (new and len(present) > limit):
            text = f"{len(present)} jobs of the type {site.KIND} with job {min(new or present)[0]}"
            self.context.add_flaw(f"{site.LIMITED}: {text}, allowed are {limit}")

    def _limit_in_force(self, at: float) -> int:
        """The highest that may have been in force during the last seconds before a moment."""
        changes = list(self.context.limits)
        recent = [limit for sent, answered, limit in changes if answered > at - _LIMIT_HOLDS]
        older = [limit for sent, answered, limit in changes if answered <= at - _LIMIT_HOLDS]
        return max([*recent, older[-1] if older else site.MOST])

    # At the end

    def _rest(self) -> None:
        """Wait until no job is on its way any more."""
        self.context.history.add("campaign", "rest")
        self.installation.end_upgrade()
        self.installation.wait_until_ready()
        self._administrator().reset()
        ended, deadline = -1, 0.0
        while set(statuses := self.tables.statuses()) - checks.FINAL:
            if (now_ended := sum(statuses[each] for each in checks.FINAL)) != ended:
                ended, deadline = now_ended, time.monotonic() + self.plan.rest
            if time.monotonic() > deadline:
                self.context.add_flaw(f"no job ended for {self.plan.rest:g} s: {dict(statuses)}")
                for row in self.tables.ask(
                    "SELECT job_id, status, minor_status, site FROM jobs "
                    "WHERE status NOT IN ('Done', 'Failed', 'Killed') LIMIT 5"
                ):
                    self.context.add_flaw(f"job {row[0]} is {row[1]} ({row[2]}) at {row[3]}")
                self._keep_state()
                return
            time.sleep(1)

    def _keep_state(self) -> None:
        """Keep what is known of jobs that did not end, beside the history."""
        with (self.plan.directory / "unfinished").open("w") as file:
            for question in checks.UNFINISHED:
                file.writelines(f"{row}\n" for row in [(question,), *self.tables.ask(question)])

    def _list_flaws(self) -> Iterator[str]:
        tables, history, helds = self.tables, self.context.history, self.context.helds
        submitted = {job_id: at for user in self.users for job_id, at in user.submitted.items()}
        killed = {job_id: at for user in self.users for job_id, at in user.killed.items()}
        for held in helds:
            held.lost = held.lost or held.job_id in killed
        yield from (f"{place}: no job was given out after the last fault" for place in self._list_idle())
        yield from (
            f"fault {kind}: never caused"
            for kind in sorted((self.plan.kinds or set()) - set(self.faults.done))
        )
        full = self._on_full_nodes = checks.find_on_full_nodes(tables, self.faults.full_nodes)
        yield from checks.list_wrong_ends(tables, submitted, killed, helds, history, on_full_nodes=full)
        yield from record.doubled(helds)
        bans = [each for each in self.context.bans if not history.lost_between(*each)]
        yield from checks.list_banned_matches(helds, bans, site.PLAIN)
        yield from self._list_exceeded()
        yield from checks.list_dishonest(self.probes, self.faults.blind, grace=_NOTICED)
        yield from self._list_closed()
        yield from self._list_wrong_outputs()
        # Counters of limits are folded, and sessions end.
        yield from self._settle(lambda: checks.list_left(tables))
        yield from checks.list_missing_blobs(tables, self.installation.blobs.path)
        yield from checks.list_wrong_runs(tables, self.installation.ledger)
        lost = bool(self.faults.done["lost commits"])
        is_short = bool(self.faults.done["memory refused"])
        yield from checks.list_bad_lines(self.installation.logs(), lost=lost, is_short=is_short)
        if self.plan.seconds >= 2 * _WARM:  # of a shorter one only the end, and where a machine is slow
            yield from checks.list_grown(self.memory, since=_WARM)
        yield from self._settle(self._list_old_certificates)
        yield from self._settle(self._list_sessions)

    def _settle(self, look: Callable[[], Iterator[str]]) -> list[str]:
        """Flaws that do not go away by themselves in five minutes."""
        deadline = time.monotonic() + 300
        while (found := list(look())) and time.monotonic() < deadline:
            time.sleep(1)
        return found

    def _list_exceeded(self) -> Iterator[str]:
        """Limits, delays and throttles, in every order of what players saw."""
        helds, history = self.context.helds, self.context.history
        steps = [
            Step(job_id=a, to_status=b, site=c or "", kind=d) for a, b, c, d in self.tables.ask(checks.STEPS)
        ]
        yield from record.over_the_limit(steps, site.LIMITED, site.KIND, site.MOST)
        slow = [held for held in helds if held.site == site.LIMITED and held.kind == site.SLOW]
        known = [held for held in slow if not history.recently_lost(held.asked)]
        yield from record.too_fast(known, seconds=site.DELAY, burst=site.BURST)
        for place, truth in self.context.truths.items():
            yield from record.over_the_throttle(place, truth)
        since = [held for held in helds if not history.recently_lost(held.asked)]
        adverts = [each for each in self.context.adverts if not history.recently_lost(each.sent)]
        yield from record.matched_while_closed(since, adverts, site.LEVEL2, 4)

    def _list_closed(self) -> Iterator[str]:
        """Throttles that keep room for jobs that have ended; after one advertisement all of it is free."""
        for place, scopes in site.ADVERTISED.items():
            token = self.installation.token("gateway", site=place)
            player = Site(self.context, place, token, scopes)
            with player.connected():
                yield from self._settle(partial(_list_reserved, player, scopes))

    def _list_wrong_outputs(self) -> Iterator[str]:
        """Outputs that were acknowledged and are gone or another's."""
        history = self.context.history
        expected = {
            held.job_id: held.output
            for held in self.context.helds
            if held.finished == "Done" and held.output and not history.recently_lost(held.asked)
        }
        statuses = dict(self.tables.ask("SELECT job_id, status FROM jobs"))
        real = [row[0] for row in self.tables.ask("SELECT job_id FROM jobs WHERE job_name = 'real'")]
        for user in self.users:
            with user.connected():
                for job_id in user.submitted:
                    # An output that was lost with the database is not sent again before the end.
                    is_real = job_id in real and not history.recently_lost(user.submitted[job_id])
                    is_real = is_real and job_id not in self._on_full_nodes
                    if statuses.get(job_id) != "Done" or not (job_id in expected or is_real):
                        continue
                    answer = user.send_until_answered("GET", f"/jobs/{job_id}/output", refused=(404,))
                    if answer is None or not answer.is_success:
                        yield f"job {job_id} is Done without its output: {answer and answer.text}"
                    elif job_id in expected:
                        if hashlib.sha256(answer.content).hexdigest() != expected[job_id]:
                            yield f"job {job_id} has another output than was acknowledged"
                    elif not _contains(answer.content, "out.txt", str(job_id)):
                        yield f"job {job_id} has an output without its file"

    def _list_old_certificates(self) -> Iterator[str]:
        for name in self.installation.services:
            is_shown = False
            with suppress(OSError):  # it is asked again
                is_shown = self.installation.shows_certificate(name)
            if not is_shown:
                yield f"{name} shows another certificate than the one in its file"

    def _list_sessions(self) -> Iterator[str]:
        if self.installation.sqlite:
            return
        [(number,)] = self.tables.ask(
            "SELECT count(*) FROM pg_stat_activity WHERE state = 'idle in transaction' "
            "AND state_change < now() - interval '5 seconds'"
        )
        if number:
            yield f"{number} sessions are idle in a transaction"

    def _count(self) -> dict[str, Any]:
        """Numbers for people."""
        return {
            "seed": self.plan.seed,
            "operations": sum(self.context.operations.values()),
            "statuses": dict(sorted(self.context.statuses.items())),
            "jobs": dict(self.tables.statuses()),
            "matches": dict(Counter(held.site for held in self.context.helds)),
            "disturbances": dict(self.context.disturbances),
            "disturbances in all": self.context.disturbances.total() + self.faults.done.total(),
            "faults": dict(self.faults.done),
            "faults in all": self.faults.done.total(),
            "samples of the tables": self.samples,
            "probes of /readyz": len(self.probes),
            "jobs in the state of the next release": len(self.tables.ask(checks.PARKED)),
            "advertisements": len(self.context.adverts),
            f"most {site.KIND} at {site.LIMITED}": self.busiest,
            **{f"most at {place}": dict(each.most) for place, each in self.context.truths.items()},
            "memory (MB), first, most, last": {
                name: [size >> 20 for size in (each[0][1], max(size for _, size in each), each[-1][1])]
                for name, each in self.memory.items()
            },
            f"memory (MB) in the halves after {_WARM:g} s": {
                name: [size >> 20 for size in halves]
                for name, halves in checks.measure_halves(self.memory, since=_WARM).items()
            },
            "exits": {name: each.exits for name, each in self.installation.processes.items() if each.exits},
            "anomalies": len(self.context.flaws),
        }


def _list_reserved(player: Site, scopes: Sequence[str]) -> Iterator[str]:
    player.advertise()
    found = player.show()
    for scope in scopes:
        if found[scope] != site.EMPTY_ROOM[scope]:
            yield f"{scope}: room for {found[scope]}, {site.EMPTY_ROOM[scope]} with nothing there"


def _contains(archive: bytes, name: str, text: str) -> bool:
    with tarfile.open(fileobj=io.BytesIO(archive)) as members:
        found = [each for each in members.getmembers() if each.name.endswith(name)]
        file = members.extractfile(found[0]) if found else None
        return file is not None and file.read().decode().strip() == text


def run(plan: Plan) -> Report:
    """Set an installation up, run a campaign on it, and take it down again."""
    with ExitStack() as stack:
        history = History(plan.directory / "history.jsonl")
        stack.callback(history.close)
        network = stack.enter_context(Network(plan.seed))
        installation = stack.enter_context(
            Installation(
                plan.directory,
                network,
                sqlite=plan.sqlite,
                pooler=plan.pooler,
                minimal=plan.minimal,
                earlier=plan.earlier,
            )
        )
        context = Context(
            urls={client: installation.url_of(client) for client in site.CLIENTS},
            tls=installation.tls,
            truths={place: Truth(bounds) for place, bounds in site.BOUNDS.items()},
            history=history,
            seed=plan.seed,
            lost=plan.lost,
        )
        faults = Faults(installation, context, every=plan.faults_every, kinds=plan.kinds)
        return Campaign(plan, installation, context, faults).run()
