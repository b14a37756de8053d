"""Users and pilots, over HTTP only; each repeats what was not answered, and keeps a ledger."""

import random
import threading
import time
import uuid
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import httpx

from examples.cluster.installation import KIND, LIMITED

#: Seconds that one phase of a job takes, and between two submissions, at most.
_PHASE = 0.8
#: Phases for each of a job of the limited type.
_LONGER = 10
#: Jobs that may wait while users go on submitting.
_BACKLOG = 60
#: Statuses that mean: later. Whether the request took effect is then unknown, as without an answer.
_LATER = frozenset({429, 502, 503, 504})


@dataclass(frozen=True, slots=True, kw_only=True)
class SubmittedJob:
    """A job whose submission was acknowledged."""

    job_id: int
    name: str
    answered: float


@dataclass(slots=True, kw_only=True)
class HeldJob:
    """A job that a pilot got."""

    job_id: int
    epoch: int
    lease: str
    site: str
    kind: str
    answered: float  #: from then on the pilot has it
    end_sent: float = float("inf")  #: until then it has it
    is_finished: bool = False  #: its end was acknowledged


@dataclass(slots=True)
class ClusterLedger:
    """What was acknowledged to players; of all of them."""

    submitted: list[SubmittedJob] = field(default_factory=list)
    held: list[HeldJob] = field(default_factory=list)
    writes: list[float] = field(default_factory=list)  #: when one was acknowledged
    statuses: Counter[str] = field(default_factory=Counter)
    flaws: list[str] = field(default_factory=list)

    @property
    def waiting(self) -> int:
        """About how many jobs wait."""
        return len(self.submitted) - len(self.held)


class ClusterPlayer:
    """One bearer of a token behind one balancer; it goes to the other one when its own is away."""

    def __init__(self, name: str, clients: list[httpx.Client], ledger: ClusterLedger, seed: int) -> None:
        self.name = name
        self.ledger = ledger
        self.dice = random.Random(f"{seed} {name}")
        self._clients = clients
        self._turn = self.dice.randrange(len(clients))

    def send(self, path: str, *, is_write: bool = True, **request: Any) -> httpx.Response:
        """Send a request until it is answered."""
        while True:
            try:
                answer = self._clients[self._turn].post(path, **request)
            except httpx.TransportError:
                self.ledger.statuses["no answer"] += 1
                self._turn = (self._turn + 1) % len(self._clients)
                time.sleep(0.3)
                continue
            self.ledger.statuses[str(answer.status_code)] += 1
            if answer.status_code in _LATER:
                time.sleep(0.3 + 0.4 * self.dice.random())
                continue
            if is_write and answer.is_success:
                self.ledger.writes.append(time.monotonic())
            return answer

    def pause(self, phases: int = 1) -> None:
        """Some phases of the work."""
        time.sleep(phases * _PHASE * self.dice.random())


class ClusterUser(ClusterPlayer):
    """Submits jobs, each with a name that no other has."""

    def run(self, over: threading.Event) -> None:
        """Submit until it is over."""
        number = 0
        while not over.is_set():
            self.pause()
            if self.ledger.waiting < _BACKLOG:
                names = [f"{self.name}-{number + each}" for each in range(self.dice.randint(1, 4))]
                number += len(names)
                self._submit(names)

    def _submit(self, names: list[str]) -> None:
        kinds = ({"JobType": KIND, "Site": LIMITED}, {"JobType": "User"})
        jobs = [{"Executable": "x", "JobName": name, **self.dice.choice(kinds)} for name in names]
        headers = {"Idempotency-Key": uuid.UUID(int=self.dice.getrandbits(128)).hex}
        answer = self.send("/jobs", json={"jobs": jobs}, headers=headers)
        if not answer.is_success:
            self.ledger.flaws.append(
                f"{self.name}: submission refused: {answer.status_code} {answer.text[:200]}"
            )
            return
        now = time.monotonic()
        self.ledger.submitted += [
            SubmittedJob(job_id=job_id, name=name, answered=now)
            for job_id, name in zip(answer.json()["job_ids"], names, strict=True)
        ]


class ClusterPilot(ClusterPlayer):
    """Requests jobs at one site, and pretends to run them."""

    def __init__(
        self, site: str, name: str, clients: list[httpx.Client], ledger: ClusterLedger, seed: int
    ) -> None:
        super().__init__(name, clients, ledger, seed)
        self._site = site

    def run(self, over: threading.Event) -> None:
        """Run jobs until it is over and none waits: those of the limited type wait for each other."""
        while not over.is_set() or self.ledger.waiting > 0:
            self._run_one()

    def _run_one(self) -> None:
        body = {
            "Site": self._site,
            "GridCE": "ce",
            "Queue": "q",
            "CPUTime": 10**6,
            "request_id": uuid.uuid4().hex,
        }
        answer = self.send("/matcher/requestJob", is_write=False, json=body)
        if not answer.is_success:
            self.ledger.flaws.append(
                f"{self.name}: request refused: {answer.status_code} {answer.text[:200]}"
            )
            return
        matches = answer.json()["matches"]
        if not matches:
            time.sleep(1)
            return
        now = time.monotonic()
        self.ledger.writes.append(now)
        for match in matches:
            self._work(self._note(match, now))

    def _note(self, match: Mapping[str, Any], now: float) -> HeldJob:
        held = HeldJob(
            job_id=match["job_id"],
            epoch=match["epoch"],
            lease=match["lease"],
            site=self._site,
            kind=str(match["description"].get("JobType", "")),
            answered=now,
        )
        self.ledger.held.append(held)
        return held

    def _work(self, held: HeldJob) -> None:
        phases = _LONGER if held.kind == KIND else 1  # so that more of them would run than the limit allows
        for report, body in (("start", {}), ("heartbeat", {"progress": "on"})):
            self.pause(phases)
            if not self._report(held, report, body):
                held.end_sent = time.monotonic()
                return
        self.pause()
        held.end_sent = time.monotonic()
        held.is_finished = self._report(held, "finish", {"status": "Done", "exit_code": 0})

    def _report(self, held: HeldJob, report: str, body: Mapping[str, object]) -> bool:
        answer = self.send(f"/leases/{held.lease}/{report}", json=body)
        if not answer.is_success:
            refusal = f"{report} of epoch {held.epoch} refused: {answer.status_code} {answer.text[:200]}"
            self.ledger.flaws.append(f"job {held.job_id}: {refusal}")
        return answer.is_success
