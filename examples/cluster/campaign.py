"""A campaign from its beginning to its report."""

import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from functools import partial
from itertools import pairwise
from pathlib import Path

import psycopg

from examples.cluster import checks
from examples.cluster.faults import ClusterFaults
from examples.cluster.installation import HOSTS, LIMITED, PLAIN, VO, ClusterInstallation
from examples.cluster.players import ClusterLedger, ClusterPilot, ClusterUser
from examples.servers.starting import wait_until

#: Pilots of each site: more than the limit takes.
_PILOTS = {LIMITED: 5, PLAIN: 4}
_USERS = 2
#: Seconds until all jobs have ended after the last fault.
_PATIENCE = 600.0


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterPlan:
    """What is to be done."""

    seed: int
    seconds: float  #: while faults are begun
    directory: Path
    kinds: frozenset[str] | None = None  #: of faults; None: all
    least: int = 0  #: kinds of faults that are caused, however long that takes
    silence: float = 30.0  #: the longest time without an acknowledged write, in seconds
    tell: Callable[[str], None] = lambda _: None  #: gets a line for each fault


@dataclass(slots=True, kw_only=True)
class ClusterReport:
    """What came of it."""

    faults: Mapping[str, int]
    statuses: Mapping[str, int]  #: of answers
    submitted: int
    finished: int
    lost: list[str]
    doubled: list[str]
    over_limit: list[str]
    others: list[str]
    recoveries: list[str]  #: in which `db recover` was wanted
    most: int  #: jobs of the limited type at once, as pilots saw it
    silences: Mapping[str, float]  #: the longest by kind of fault
    flaws: list[str] = field(default_factory=list)


class ClusterCampaign:
    """Players and faults on an installation that runs."""

    def __init__(self, plan: ClusterPlan, installation: ClusterInstallation) -> None:
        self._plan = plan
        self._installation = installation
        self._ledger = ClusterLedger()
        self._faults = ClusterFaults(installation, plan.seed, plan.tell)
        self._over = threading.Event()  #: nothing new is submitted
        self._ended = threading.Event()
        self._seen: dict[str, int] = {}  #: by the looks at the tables

    def run(self) -> ClusterReport:
        """Run it."""
        with ExitStack() as stack:
            for watch in (self._keep_alive, self._look):
                stack.callback(self._start(watch).join, 60)
            stack.callback(self._ended.set)  # whatever happens: nothing may be started again at the end
            players = list(self._start_players(stack))
            stack.callback(self._over.set)
            deadline = time.monotonic() + self._plan.seconds
            self._faults.run(lambda: self._is_enough(deadline), self._plan.kinds)
            self._over.set()
            for player in players:
                player.join(_PATIENCE)
            self._ledger.flaws += [f"{each.name} has not ended" for each in players if each.is_alive()]
            wait_until(lambda: self._is_stuck() or not list(checks.list_left(self._installation.ask)))
        return self._report()

    def _is_enough(self, deadline: float) -> bool:
        return time.monotonic() > deadline and len(self._faults.done) >= self._plan.least

    def _is_stuck(self) -> bool:
        return bool(self._ledger.flaws or self._faults.flaws)

    def _start_players(self, stack: ExitStack) -> Iterator[threading.Thread]:
        urls = self._installation.services
        seed, ledger = self._plan.seed, self._ledger
        for number in range(_USERS):
            name = f"user{number}"
            token = self._installation.make_token("user", "--user", name)
            clients = [stack.enter_context(self._installation.make_client(url, token)) for url in urls]
            yield self._start(partial(ClusterUser(name, clients, ledger, seed).run, self._over))
        for site, number in _PILOTS.items():
            for each in range(number):
                token = self._installation.make_token("pilot", "--queue", f"{site}/ce/q")
                clients = [stack.enter_context(self._installation.make_client(url, token)) for url in urls]
                pilot = ClusterPilot(site, f"pilot{each}-{site}", clients, ledger, seed)
                yield self._start(partial(pilot.run, self._over))

    def _start(self, run: Callable[[], None]) -> threading.Thread:
        thread = threading.Thread(target=run, daemon=True)
        thread.start()
        return thread

    def _keep_alive(self) -> None:
        while not self._ended.wait(0.5):
            self._installation.keep_alive()

    def _look(self) -> None:
        """Ask what has to hold at any moment, and whether a service wants a recovery."""
        while not self._ended.wait(1):
            with suppress(psycopg.Error, TimeoutError):
                for name, question in checks.AT_ANY_MOMENT.items():
                    if self._installation.ask(question):
                        self._seen[name] = self._seen.get(name, 0) + 1
            for host in HOSTS:
                state = self._installation.read_readiness(host).get("checks", {})
                if isinstance(state, Mapping) and state.get("history", "ok") != "ok":
                    self._seen["history"] = self._seen.get("history", 0) + 1

    def _report(self) -> ClusterReport:
        ask, ledger = self._installation.ask, self._ledger
        logs = [process.log for process in self._installation.processes.values()]
        most = checks.count_most(ledger.held)
        over = [f"pilots had {most} at once"] if most > checks.MOST else []
        recoveries = checks.list_recoveries(logs)
        recoveries += ["/readyz"] * self._seen.pop("history", 0)
        report = ClusterReport(
            faults=self._faults.done,
            statuses=ledger.statuses,
            submitted=len(ledger.submitted),
            finished=sum(held.is_finished for held in ledger.held),
            lost=list(checks.list_lost(ask, ledger)),
            doubled=list(checks.list_doubled(ask, ledger)),
            over_limit=over + [f"the tables had {name}, {times} times" for name, times in self._seen.items()],
            others=[*self._faults.flaws, *ledger.flaws, *checks.list_left(ask)],
            recoveries=recoveries,
            most=most,
            silences=self._list_silences(),
        )
        report.flaws = list(self._list_flaws(report))
        return report

    def _list_silences(self) -> dict[str, float]:
        """The longest time without a write after the beginning of each kind of fault, until the next one."""
        longest: dict[str, float] = {}
        begun = [*self._faults.times, (float("inf"), "")]
        for (at, name), (until, _) in pairwise(begun):
            seconds, _ = checks.find_silence(each for each in self._ledger.writes if at - 5 <= each <= until)
            longest[name] = max(longest.get(name, 0.0), seconds)
        return longest

    def _list_flaws(self, report: ClusterReport) -> Iterator[str]:
        for name, found in (
            ("lost", report.lost),
            ("doubled", report.doubled),
            ("over a limit", report.over_limit),
            ("other", report.others),
            ("db recover wanted", report.recoveries),
        ):
            yield from (f"{name}: {each}" for each in found)
        if number := report.statuses.get("500", 0):
            yield f"{number} answers were 500"
        for name, seconds in report.silences.items():
            if seconds > self._plan.silence:
                yield f"{name}: no write was acknowledged for {seconds:.0f} s"


def run(plan: ClusterPlan) -> ClusterReport:
    """Set an installation up, run a campaign on it, and take it down again."""
    installation = ClusterInstallation(plan.directory)
    with ExitStack() as stack:
        stack.callback(installation.stop)
        installation.start()
        plan.tell(f"a token for the VO {VO}, two services, three nodes: all ready")
        return ClusterCampaign(plan, installation).run()
