"""Simulated pilots, gateways and users: they ask, work, die and advertise, over HTTP only."""

import random
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import httpx

from tests.acceptance.load_record import Advert, Held, Truth
from tests.gateway import GATHERING, POLLING, SUBMITTING

#: Seconds that one phase of a job takes at most.
PHASE = 0.3


@dataclass(kw_only=True)
class Play:
    """What all players share."""

    url: str
    truths: dict[str, Truth]
    random: random.Random
    asking: threading.Event = field(default_factory=threading.Event)  #: pilots ask for work
    playing: threading.Event = field(default_factory=threading.Event)  #: gateways advertise, pilots live
    tormenting: threading.Event = field(default_factory=threading.Event)  #: things are killed
    helds: list[Held] = field(default_factory=list)
    adverts: list[Advert] = field(default_factory=list)
    errors: list[str] = field(default_factory=list)
    reasons: dict[tuple[str, str], int] = field(default_factory=dict)

    @contextmanager
    def client(self, token: str) -> Iterator[httpx.Client]:
        headers = {"Authorization": f"Bearer {token}"}
        with httpx.Client(
            base_url=f"{self.url}/api/v1", headers=headers, timeout=30, trust_env=False
        ) as client:
            yield client

    def thread(self, play: Callable[[], None], name: str) -> threading.Thread:
        """What breaks in a player is a flaw of the run."""

        def run() -> None:
            try:
                play()
            except Exception as error:  # noqa: BLE001 - told at the end of the run
                self.errors.append(f"{name}: {type(error).__name__}: {error}")

        return threading.Thread(target=run, name=name, daemon=True)


class Pilot:
    """Asks for jobs at one queue and plays them; now and then it dies with them."""

    def __init__(self, play: Play, token: str, queue: str, seed: int) -> None:
        self._play = play
        self._token = token
        self._site, self._ce, self._queue = queue.split("/")
        self._truth = play.truths[self._site]
        self._random = random.Random(seed)

    def run(self) -> None:
        with self._play.client(self._token) as client:
            while self._play.playing.is_set():
                helds = self._ask(client) if self._play.asking.is_set() else []
                for held in helds:
                    self._work(client, held)
                if not helds:
                    self._pause(PHASE)

    def _ask(self, client: httpx.Client) -> list[Held]:
        asked = time.monotonic()
        resource = {"Site": self._site, "GridCE": self._ce, "Queue": self._queue, "CPUTime": 10**6}
        answer = _post(client, "/matcher/requestJob", {**resource, "count": self._random.randint(1, 2)})
        answered = time.monotonic()
        if answer is None:
            return []
        said = answer.json()
        if reason := said.get("reason"):
            key = (self._site, reason)
            self._play.reasons[key] = self._play.reasons.get(key, 0) + 1
        found = [
            Held(
                lease=match["lease"],
                job_id=match["job_id"],
                site=self._site,
                asked=asked,
                answered=answered,
                nth=number,
            )
            for number, match in enumerate(said["matches"])
        ]
        self._play.helds += found
        return found

    def _work(self, client: httpx.Client, held: Held) -> None:
        """The whole life of a job; one that dies is gone from the site without a word."""
        fate = self._random.random() if self._play.tormenting.is_set() else 1.0
        if fate < 0.03:
            held.lost = True
            return
        if fate < 0.06:
            self._end(client, held, "release", {"reason": "no room"})
            return
        self._truth.put(held.lease, SUBMITTING)
        self._pause(PHASE)
        held.start_sent = time.monotonic()
        if not self._say(client, held, "start", {}):
            return
        self._pause(PHASE)
        self._truth.go_on(held.lease, POLLING)
        if fate < 0.1:
            held.lost = True
            self._truth.leave(held.lease)
            return
        self._pause(4 * PHASE)
        if not self._say(client, held, "heartbeat", {"progress": "on"}):
            return
        self._truth.go_on(held.lease, GATHERING)
        self._pause(PHASE)
        self._end(client, held, "finish", {"status": "Done", "exit_code": 0})

    def _say(self, client: httpx.Client, held: Held, what: str, body: dict[str, object]) -> bool:
        """Report; False: it was told to end, or that the job is not its own any more."""
        answer = _insisted(client, f"/leases/{held.lease}/{what}", body)
        if answer is None:
            held.lost = True
            self._truth.leave(held.lease)
            return False
        if answer.is_success and "kill" not in answer.json()["commands"]:
            return True
        held.lost = True
        self._end(client, held, "finish", {"status": "Failed", "exit_code": 1})
        return False

    def _end(self, client: httpx.Client, held: Held, what: str, body: dict[str, object]) -> None:
        """Leave the site, then say so: nobody stops counting it before it is gone."""
        self._truth.leave(held.lease)
        held.end_sent = time.monotonic()
        answer = _insisted(client, f"/leases/{held.lease}/{what}", body)
        if answer is None or not answer.is_success:
            held.lost = True

    def _pause(self, most: float) -> None:
        time.sleep(self._random.random() * most)


class Gateway:
    """Advertises what is at its site: late, twice, out of order, with lists, or as a plain script."""

    def __init__(self, play: Play, token: str, scopes: tuple[str, ...], *, every: float, seed: int) -> None:
        self._play = play
        self._token = token
        self._scopes = scopes
        self._site = scopes[0].partition("/")[0]
        self._every = every
        self._random = random.Random(seed)
        self._late: list[tuple[dict[str, Any], float]] = []
        self._contained = 0.0

    def run(self) -> None:
        with self._play.client(self._token) as client:
            while self._play.playing.is_set():
                self.advertise(client)
                time.sleep(self._random.random() * self._every)

    def advertise(self, client: httpx.Client) -> None:
        """Count once, and send that or what was kept back before."""
        dice = self._random.random() if self._play.tormenting.is_set() else 1.0
        counted = self._plain() if 0.1 < dice < 0.2 else self._exact(client, with_list=dice < 0.5)
        if counted is None:
            return
        if dice < 0.1:
            self._late.append(counted)
            return
        self._send(client, *counted)
        if dice < 0.3 and self._late:
            self._send(client, *self._late.pop(self._random.randrange(len(self._late))))

    def _exact(self, client: httpx.Client, *, with_list: bool) -> tuple[dict[str, Any], float] | None:
        answer = _post(client, f"/sites/{self._site}/watermark", {})
        if answer is None:
            return None
        fetched = time.monotonic()
        time.sleep(self._random.random() * self._every / 4)
        return {**self._count(with_list=with_list), "as_of": answer.json()["watermark"]}, fetched

    def _plain(self) -> tuple[dict[str, Any], float]:
        return self._count(with_list=False), self._contained

    def _count(self, *, with_list: bool) -> dict[str, Any]:
        truth = self._play.truths[self._site]
        with truth.lock:
            said = truth.gateway.count(None, with_list=with_list)
        return {**said.attributes, "attempts_seen": list(said.leases_seen)}

    def _send(self, client: httpx.Client, said: dict[str, Any], contained: float) -> None:
        for scope in self._scopes:
            sent = time.monotonic()
            site, *below = scope.split("/")
            path = "".join(f"/{kind}/{name}" for kind, name in zip(("ces", "queues"), below, strict=False))
            answer = _post(client, f"/sites/{site}{path}/advertisement", said)
            answered = time.monotonic()
            if answer is None or answer.json()["accepted"]:
                self._play.adverts.append(
                    Advert(
                        scope=scope,
                        sent=sent,
                        answered=answered,
                        contained=contained,
                        busy=said["CurrentSubmittingJobs"] + said["CurrentGatheringOutputJobs"],
                        listed=frozenset(said["attempts_seen"]),
                        sure=answer is not None,
                    )
                )
        self._contained = time.monotonic()


class User:
    """Keeps so many jobs waiting, and kills one now and then."""

    def __init__(self, play: Play, token: str, kinds: tuple[str, ...], *, backlog: int) -> None:
        self._play = play
        self._token = token
        self._kinds = kinds
        self._backlog = backlog
        self.job_ids: list[int] = []
        self.killed: list[int] = []

    def run(self) -> None:
        with self._play.client(self._token) as client:
            while self._play.asking.is_set() and self._play.tormenting.is_set():
                self._fill(client)
                self._kill(client)
                time.sleep(0.2)

    def _fill(self, client: httpx.Client) -> None:
        summary = _sent(client, "GET", "/jobs/summary", params={"by": "status"})
        if summary is None:
            return
        counts = {row["status"]: row["count"] for row in summary.json()["summary"]}
        waiting = sum(counts.get(status, 0) for status in ("Received", "Checking", "Waiting", "Rescheduled"))
        missing = self._backlog - waiting
        if missing <= 0:
            return
        jobs = [{"Executable": "x", "JobType": self._play.random.choice(self._kinds)} for _ in range(missing)]
        answer = _sent(client, "POST", "/jobs", json={"jobs": jobs})
        if answer is not None:
            self.job_ids += answer.json()["job_ids"]

    def _kill(self, client: httpx.Client) -> None:
        if not self.job_ids or self._play.random.random() < 0.5:
            return
        job_id = self._play.random.choice(self.job_ids[-2 * self._backlog :])
        self.killed.append(job_id)
        _sent(client, "POST", f"/jobs/{job_id}/kill")


def _post(client: httpx.Client, path: str, body: dict[str, Any]) -> httpx.Response | None:
    return _sent(client, "POST", path, json=body)


def _insisted(client: httpx.Client, path: str, body: dict[str, Any]) -> httpx.Response | None:
    """Ask until there is an answer, as a pilot does: the same report again changes nothing."""
    for _ in range(50):
        if (answer := _post(client, path, body)) is not None:
            return answer
        time.sleep(0.1)
    return None


def _sent(client: httpx.Client, method: str, path: str, **request: Any) -> httpx.Response | None:
    """The answer; None: nobody knows whether it was heard, since a process of the service was killed."""
    try:
        answer = client.request(method, path, **request)
    except httpx.TransportError:
        return None
    if answer.status_code in {429, 503}:
        return None
    if answer.status_code != 409:
        answer.raise_for_status()
    return answer
