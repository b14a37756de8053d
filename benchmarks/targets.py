"""What shall be reached on two cores with everything on them, and whether it is."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from benchmarks.results import Result


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """One number that shall be reached."""

    benchmark: str  #: which measures it
    text: str
    wanted: float
    unit: str = ""
    at_most: bool = False  #: else at least

    def met(self, measured: float) -> bool:
        """Whether a number will do."""
        return measured <= self.wanted if self.at_most else measured >= self.wanted

    def shown(self, value: float) -> str:
        """A number with its unit."""
        number = f"{value:,.0f}" if value >= 100 else f"{value:.3g}"
        return f"{number}{self.unit}"

    @property
    def limit(self) -> str:
        """What is wanted, for people."""
        return f"{'≤' if self.at_most else '≥'} {self.shown(self.wanted)}"


def _match(text: str, wanted: float, unit: str = "", *, at_most: bool = False) -> Target:
    return Target(benchmark="match", text=text, wanted=wanted, unit=unit, at_most=at_most)


_HTTP_AT = "match over HTTP,"
_DIRAC = "in process against DIRAC's TaskQueueDB"

#: By the names that results use.
TARGETS: Mapping[str, Target] = {
    **{
        f"http {clients}": _match(
            f"{_HTTP_AT} 10⁶ waiting, 10,000 classes, {clients} clients, full hand-over", wanted, "/s"
        )
        for clients, wanted in ((16, 2_000), (64, 2_500))
    },
    **{
        f"http of bare {clients}": _match(
            f"{_HTTP_AT} {clients} clients, against the bare claim", wanted, "×"
        )
        for clients, wanted in ((16, 1.5), (64, 1.8))
    },
    **{
        f"http p99 {clients}": _match(f"{_HTTP_AT} {clients} clients: p99", wanted, " ms", at_most=True)
        for clients, wanted in ((32, 50), (64, 80))
    },
    "http cpu": _match(f"{_HTTP_AT} 64 clients: CPU of the service for each", 350, " µs", at_most=True),
    "expression at the bound": Target(
        benchmark="expressions",
        text="one evaluation at the bound of its work",
        wanted=10,
        unit=" ms",
        at_most=True,
    ),
    "http cold": _match("512 pilots over HTTP right after the start", 1, " s", at_most=True),
    "single": _match(
        "single claims in process, 10,000 classes, against the bare claim with as many clients", 0.6, "×"
    ),
    "batched": _match("64 concurrent requests of one process against the bare claim of one client", 1.8, "×"),
    **{
        f"dirac {queues} {clients}": _match(
            f"{_DIRAC}, {queues:,} task queues, {clients} client{'s' * (clients > 1)}", wanted, "×"
        )
        for queues, of_one, of_four in ((10, 5, 5), (1_000, 6.6, 8), (10_000, 46, 50))
        for clients, wanted in ((1, of_one), (4, of_four))
    },
    **{
        f"scarcity {part}": _match(
            f"single claims in process with Scarcity: {part} to that without", 1.03, "×", at_most=True
        )
        for part in ("p50", "p99")
    },
    "select new": _match(
        "classes that a pilot of a new place may run, of 50,000: CPU", 1, " ms", at_most=True
    ),
    "select": _match(
        "classes that a pilot of a known place may run, of 50,000: CPU", 0.02, " ms", at_most=True
    ),
    "growth classes": _match("growth of match time from 10 to 50,000 classes", 1.5, "×", at_most=True),
    "growth jobs": _match("growth of match time from 10⁴ to 10⁷ waiting jobs", 1.5, "×", at_most=True),
    **{
        f"limited, {where}": Target(
            benchmark="growth",
            text=f"64 concurrent requests from {where}, 6 of 60 limited, against the same without limits",
            wanted=wanted,
            unit="×",
        )
        for where, wanted in (("all sites", 0.9), ("limited sites", 0.7), ("full sites", 0.3))
    },
    "spec": Target(
        benchmark="spec",
        text="specification over HTTP, 10⁷ waiting, 1,000 sites, full hand-over: the worst minute",
        wanted=1_000,
        unit="/s",
    ),
    "spec p99": Target(
        benchmark="spec",
        text="specification over HTTP: p99 of the worst minute",
        wanted=50,
        unit=" ms",
        at_most=True,
    ),
    "nothing": Target(
        benchmark="nothing",
        text="nothing over HTTP against the empty endpoint of the same server, token verified",
        wanted=0.6,
        unit="×",
    ),
    "nothing p99": Target(
        benchmark="nothing", text="nothing over HTTP: p99", wanted=10, unit=" ms", at_most=True
    ),
    "heartbeats": Target(
        benchmark="mixed",
        text="heartbeats of running jobs beside 500 matches/s",
        wanted=3_000,
        unit="/s",
    ),
    "matches beside submissions": Target(
        benchmark="mixed",
        text="match over HTTP, 32 clients, beside 2,000 submitted jobs/s: p99",
        wanted=80,
        unit=" ms",
        at_most=True,
    ),
    "wlcg rates": Target(
        benchmark="wlcg",
        text="1.5 million running, 3 million waiting, 1,000 sites: submissions, claims, ends and heartbeats"
        " against what is due, the worst minute from minute 5 on",
        wanted=0.98,
        unit="×",
    ),
    "wlcg p99": Target(
        benchmark="wlcg",
        text="the same: p99 of requests for work after half an hour against that of minute 5",
        wanted=2,
        unit="×",
        at_most=True,
    ),
    "wlcg queues": Target(
        benchmark="wlcg",
        text="the same: queues that are longer in minute 30 than in minute 10",
        wanted=0,
        at_most=True,
    ),
    "hostile": Target(
        benchmark="hostile",
        text="another VO's requests for work beside an attack: p99, against that beside ordinary requests",
        wanted=2,
        unit="×",
        at_most=True,
    ),
    "hostile longest": Target(
        benchmark="hostile",
        text="another VO beside an attack: the longest wait",
        wanted=1_000,
        unit=" ms",
        at_most=True,
    ),
    "submit": Target(
        benchmark="submit",
        text="submission until Waiting: JDL text in, 1,000 a call, two log rows a job",
        wanted=8_000,
        unit="/s",
    ),
    "refresh": Target(
        benchmark="pools",
        text="refresh 10,000 pools × 100,000 queues (5,000 classes, 10 % density), with commit",
        wanted=10,
        unit=" s",
        at_most=True,
    ),
    "door": Target(
        benchmark="door",
        text="200 JobAgents of DIRAC polling the door, a TLS connection for each call: of one core",
        wanted=50,
        unit="/s",
    ),
    **{
        f"director {name}": Target(
            benchmark="director",
            text=f"director of 592 CEs, 980 queues, 5 VOs: {text}",
            wanted=wanted,
            unit=unit,
            at_most=True,
        )
        for name, text, wanted, unit in (
            ("cycle", "a cycle, 2 % of the CEs hanging", 30, " s"),
            ("decision", "the decision", 2, " s"),
            ("memory", "memory", 200, " MB"),
            ("requests", "requests for each VO and cycle", 20, ""),
        )
    },
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """How a target came out; of several measurements the worst."""

    target: Target
    measured: float | None  #: None: it was not measured
    note: str = ""

    def row(self) -> dict[str, str]:
        """For a table."""
        return {
            "what": self.target.text,
            "target": self.target.limit,
            "measured": "not measured" if self.measured is None else self.target.shown(self.measured),
            "met": "" if self.measured is None else "yes" if self.target.met(self.measured) else "no",
            "note": self.note,
        }


def verdicts(results: Iterable[Result], benchmarks: Sequence[str]) -> list[Verdict]:
    """What became of the targets of these benchmarks."""
    found = list(results)
    return [
        _verdict(name, target, found) for name, target in TARGETS.items() if target.benchmark in benchmarks
    ]


def _verdict(name: str, target: Target, results: Sequence[Result]) -> Verdict:
    measured = [(result.targets[name], result.note) for result in results if name in result.targets]
    if not measured:
        return Verdict(target=target, measured=None)
    worst = (max if target.at_most else min)(measured, key=lambda each: each[0])
    return Verdict(target=target, measured=worst[0], note=worst[1])
