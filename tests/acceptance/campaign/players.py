"""Simulated users, pilots, sites and administrators: over HTTP only, repeating, late, and sometimes dead."""

import hashlib
import random
import ssl
import threading
import time
import uuid
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any

import httpx

from tests.acceptance.campaign import next_release, site
from tests.acceptance.campaign.record import (
    GATHERING,
    NEVER,
    POLLING,
    SUBMITTING,
    Advert,
    Held,
    History,
    Truth,
)
from tests.support.factories.archives import tar

#: Seconds that one phase of a job takes at most.
PHASE = 0.5
#: Seconds for which a pilot repeats a report, and within which a repeated request has the same matches.
_PATIENCE = 300.0
_REPEATED_WITHIN = site.LEASE_TIME / 2
#: Seconds without an answer after which a payload is ended; the service counts from the answer before.
_RUN_ON = site.RUN_ON - 5
#: Seconds until a request is given up.
_ANSWER = 15.0
#: Seconds between two requests of a pilot without a job, at most.
_IDLE = 4.0
#: Statuses that mean: later. Whether the request took effect is then unknown, as without an answer.
_LATER = frozenset({429, 503})


@dataclass(kw_only=True)
class Context:
    """What all players share."""

    urls: Mapping[str, str]  #: by kind of client
    tls: ssl.SSLContext  #: that trusts the services
    truths: dict[str, Truth]
    history: History
    seed: int
    lost: float = 0.1  #: part of the answers that players throw away
    working: threading.Event = field(default_factory=threading.Event)  #: pilots, sites and users live
    disturbing: threading.Event = field(default_factory=threading.Event)  #: and make trouble
    helds: list[Held] = field(default_factory=list)
    adverts: list[Advert] = field(default_factory=list)
    bans: list[tuple[float, float]] = field(default_factory=list)  #: of the plain site: in force surely
    limits: list[tuple[float, float, int]] = field(default_factory=list)  #: sent, answered, the running limit
    flaws: list[str] = field(default_factory=list)
    statuses: Counter[str] = field(default_factory=Counter)
    disturbances: Counter[str] = field(default_factory=Counter)
    operations: Counter[str] = field(default_factory=Counter)

    def add_flaw(self, text: str) -> None:
        self.history.add("checker", text)
        self.flaws.append(text)

    def disturb(self, kind: str) -> None:
        self.disturbances[kind] += 1

    def make_thread(self, run: Callable[[], None], name: str) -> threading.Thread:
        """A player that breaks is a flaw of the run."""

        def guarded() -> None:
            try:
                run()
            except Exception as error:  # noqa: BLE001 - reported at the end of the run
                self.add_flaw(f"{name}: {type(error).__name__}: {error}")

        return threading.Thread(target=guarded, name=name, daemon=True)


class Player:
    """Sends requests of one token; each may be lost, repeated, or answered in vain."""

    #: The link to the services that its requests take.
    link = "users"

    def __init__(self, context: Context, name: str, token: str) -> None:
        self.context = context
        self.name = name
        self.dice = random.Random(f"{context.seed} {name}")
        self._token = token
        self._client: httpx.Client | None = None
        self._sent = 0.0  #: the last request; one that is only repeated does not count

    @contextmanager
    def connected(self) -> Iterator[None]:
        headers = {"Authorization": f"Bearer {self._token}"}
        url = f"{self.context.urls[self.link]}/api/v1"
        with httpx.Client(
            base_url=url, headers=headers, timeout=_ANSWER, trust_env=False, verify=self.context.tls
        ) as client:
            self._client = client
            yield

    def send(
        self, method: str, path: str, *, refused: Sequence[int] = (409,), **request: Any
    ) -> httpx.Response | None:
        """The answer; None: it is unknown whether the request took effect.

        Args:
            method: Of HTTP.
            path: Below `/api/v1`.
            refused: Statuses above 399 that are right, too.
            request: Its other parts.
        """
        assert self._client is not None
        self._sent = time.monotonic()
        self.context.operations[f"{method} {path.rpartition('/')[2] if method != 'GET' else 'pages'}"] += 1
        try:
            answer = self._client.request(method, path, **request)
        except httpx.TransportError:
            self.context.disturb("no answer")
            return None
        self.context.statuses[_name_status(answer)] += 1
        if answer.status_code in _LATER:
            return None
        if answer.status_code >= 400 and answer.status_code not in refused:
            self.context.add_flaw(f"{self.name}: {method} {path}: {answer.status_code} {answer.text[:300]}")
        if self.context.disturbing.is_set() and self.dice.random() < self.context.lost:
            self.context.disturb("answer thrown away")
            return None
        return answer

    def send_until_answered(
        self, method: str, path: str, *, patience: float = _PATIENCE, **request: Any
    ) -> httpx.Response | None:
        """Repeat a request that changes nothing when it comes twice, for some seconds."""
        deadline = time.monotonic() + patience
        while time.monotonic() < deadline:
            rest = max(0.1, min(_ANSWER, deadline - time.monotonic()))
            if (answer := self.send(method, path, timeout=rest, **request)) is not None:
                if self.context.disturbing.is_set() and self.dice.random() < 0.2:
                    self._repeat(answer, method, path, **request)
                return answer
            time.sleep(0.2)
        return None

    def _repeat(self, first: httpx.Response, method: str, path: str, **request: Any) -> None:
        """The same request has the same answer, also at another service."""
        self.context.disturb("request repeated")
        sent, began = self._sent, time.monotonic()
        again = self.send(method, path, **request)
        self._sent = sent
        if again is None or again.status_code in (first.status_code, 409):
            return
        if not self.context.history.recently_lost(began):
            self.context.add_flaw(f"{self.name}: {path}: {first.status_code}, repeated {again.status_code}")

    def pause(self, most: float) -> None:
        time.sleep(self.dice.random() * most)


class Pilot(Player):
    """Requests jobs at one queue and simulates them; now and then it dies with them."""

    link = "pilots"

    def __init__(self, context: Context, name: str, token: str, site_name: str) -> None:
        super().__init__(context, name, token)
        self._site = site_name
        self._truth = context.truths[site_name]
        self._ended: list[Held] = []

    def run(self) -> None:
        with self.connected():
            while self.context.working.is_set():
                helds = self._request_jobs()
                for held in helds:
                    self._work(held)
                if self.context.disturbing.is_set():
                    self._report_late()
                if not helds:
                    self.pause(_IDLE)

    def _request_jobs(self) -> list[Held]:
        """Request jobs; without an answer again, with the same id."""
        body = {
            "Site": self._site,
            "GridCE": "ce",
            "Queue": "q",
            "CPUTime": 10**6,
            "request_id": uuid.uuid4().hex,
            "count": self.dice.randint(1, 2),
        }
        asked = time.monotonic()
        answer = None
        while answer is None and time.monotonic() < asked + _REPEATED_WITHIN:
            answer = self.send("POST", "/matcher/requestJob", json=body)
            if answer is None:
                self.pause(PHASE)
        answered = time.monotonic()
        if answer is None or not answer.is_success:
            return []
        matches = answer.json()["matches"]
        taken_away = frozenset[str]()
        if matches and self.context.disturbing.is_set() and self.dice.random() < 0.1:
            taken_away = self._request_again(body, matches, asked)
        found = [
            Held(
                lease=match["lease"],
                job_id=match["job_id"],
                site=self._site,
                kind=str(match["description"].get("JobType", "")),
                asked=asked,
                answered=answered,
                good_until=answered + _seconds_until(match["lease_expires_at"]),
                nth=number,
                taken_away=match["lease"] in taken_away,
            )
            for number, match in enumerate(matches)
        ]
        for held in found:
            self.context.history.add(self.name, f"holds {held.lease[:8]}", held.job_id)
        self.context.helds += found
        return found

    def _request_again(self, body: Mapping[str, Any], matches: Sequence[Any], asked: float) -> frozenset[str]:
        """Send a request again. It has the same matches but for those that a user took away: return these."""
        self.context.disturb("request repeated")
        again = self.send("POST", "/matcher/requestJob", json=body)
        in_time = time.monotonic() < asked + _REPEATED_WITHIN
        if again is None or not in_time or not again.is_success or self.context.history.recently_lost(asked):
            return frozenset()
        first = [each["lease"] for each in matches]
        leases = [each["lease"] for each in again.json()["matches"]]
        kept = [each for each in first if each in leases]
        if kept and leases != kept:  # with none left it is a new request
            self.context.add_flaw(f"job {matches[0]['job_id']}: the same request has other matches: {leases}")
        return frozenset(first).difference(kept)

    def _work(self, held: Held) -> None:
        """The whole life of a job; with a pilot that dies it is gone from the site without a report."""
        fate = self.dice.random() if self.context.disturbing.is_set() else 1.0
        if fate < 0.03:
            held.lost = True
            self.context.disturb("pilot dies unstarted")
            return
        if fate < 0.06:
            self._end(held, "release", {"reason": "no room"})
            return
        self._truth.put(held.lease, SUBMITTING, held.good_until)
        self.pause(PHASE)
        if not self._start(held):
            return
        self.pause(PHASE)
        self._truth.go_on(held.lease, POLLING)
        if fate < 0.1:
            held.lost = True
            self.context.disturb("pilot dies")
            self._truth.leave(held.lease)
            return
        self.pause(4 * PHASE)
        if not self._heartbeat(held):
            return
        self._truth.go_on(held.lease, GATHERING)
        self.pause(PHASE)
        self._deliver(held)
        failed = fate < 0.12
        self._end(held, "finish", {"status": "Failed" if failed else "Done", "exit_code": int(failed)})

    def _start(self, held: Held) -> bool:
        """Report the start while the lease is good for sure; else leave the job alone."""
        held.start_sent = time.monotonic()
        answer = None
        while answer is None and time.monotonic() < held.good_until:
            rest = max(0.1, min(_ANSWER, held.good_until - time.monotonic()))
            path = f"/leases/{held.lease}/start"
            answer = self.send("POST", path, json={}, refused=(404, 409), timeout=rest)
            if answer is None:
                self.pause(PHASE)
        if answer is not None and answer.is_success and not answer.json()["commands"]:
            if held.taken_away:
                self.context.add_flaw(
                    f"job {held.job_id}: the same request has no {held.lease}, which starts"
                )
            self._truth.prolong(held.lease, self._sent + site.RUN_ON)
            return True
        self._give_up(held, answer)
        return False

    def _heartbeat(self, held: Held) -> bool:
        answer = self.send_until_answered(
            "POST",
            f"/leases/{held.lease}/heartbeat",
            patience=_RUN_ON,
            json={"progress": "on"},
            refused=(404, 409),
        )
        if answer is not None and answer.is_success and not answer.json()["commands"]:
            self._truth.prolong(held.lease, self._sent + site.RUN_ON)
            return True
        self._give_up(held, answer)
        return False

    def _give_up(self, held: Held, answer: httpx.Response | None) -> None:
        """The job was killed or taken away, or the service was not reached."""
        held.lost = True
        self._truth.leave(held.lease)
        self.context.history.add(self.name, f"gives {held.lease[:8]} up", held.job_id)
        if answer is not None and answer.is_success:
            self._end(held, "finish", {"status": "Failed", "exit_code": 1})

    def _deliver(self, held: Held) -> None:
        """Send an output that no other attempt has."""
        content = tar({"out.txt": f"{held.job_id} {held.lease}".encode()})
        digest = hashlib.sha256(content).hexdigest()
        deliver = partial(
            self.send_until_answered,
            *("PUT", f"/leases/{held.lease}/output"),
            content=content,
            refused=(404, 409),
        )
        answer = deliver(patience=_RUN_ON)
        if answer is None:  # its job may be given to others now
            self._truth.leave(held.lease)
            answer = deliver()
        if answer is not None and answer.is_success:
            held.output = digest

    def _end(self, held: Held, report: str, body: dict[str, object]) -> None:
        """Leave the site before the report: nobody stops counting a job before it is gone."""
        self._truth.leave(held.lease)
        held.end_sent = time.monotonic()
        path = f"/leases/{held.lease}/{report}"
        answer = self.send_until_answered("POST", path, json=body, refused=(404, 409))
        held.end_answered = time.monotonic()
        if answer is None or not answer.is_success:
            held.lost = True
        elif report == "finish":
            held.finished = str(body["status"])
        text = f"{report} {body.get('status', '')} {held.lease[:8]}: {answer and answer.status_code}"
        self.context.history.add(self.name, text, held.job_id)
        self._ended.append(held)

    def _report_late(self) -> None:
        """A report on a closed attempt, other than the stored one, changes nothing."""
        if not self._ended or self.dice.random() > 0.3:
            return
        held = self.dice.choice(self._ended[-20:])
        report, body = self.dice.choice(
            [
                ("heartbeat", {"progress": "late"}),
                ("release", {"reason": "late"}),
                ("finish", {"status": "Failed", "exit_code": 77}),
            ]
        )
        self.context.disturb("late report")
        answer = self.send("POST", f"/leases/{held.lease}/{report}", json=body, refused=(404, 409))
        is_accepted = answer is None or answer.is_success
        held.may_have_failed |= is_accepted and report == "finish"
        if answer is not None and is_accepted and held.finished and not self._is_lost(held):
            self.context.add_flaw(f"job {held.job_id}: late {report} of {held.lease[:8]} was accepted")

    def _is_lost(self, held: Held) -> bool:
        """Whether the database may have lost the end of the attempt."""
        return self.context.history.recently_lost(held.asked)


def _name_status(answer: httpx.Response) -> str:
    """The status, with the code of an error."""
    if answer.is_success or not answer.headers.get("content-type", "").startswith("application/json"):
        return str(answer.status_code)
    return f"{answer.status_code} {answer.json()['error']['code']}"


def _seconds_until(moment: str) -> float:
    """Seconds until a moment by the clock of the database, which is that of this host."""
    return (datetime.fromisoformat(moment) - datetime.now(UTC)).total_seconds()


class Site(Player):
    """Advertises what is at a site: late, twice, out of order, with lists, or as a plain script."""

    link = "sites"

    def __init__(self, context: Context, name: str, token: str, scopes: tuple[str, ...]) -> None:
        super().__init__(context, name, token)
        self._scopes = scopes
        self._site = scopes[0].partition("/")[0]
        self._late: list[tuple[dict[str, Any], float]] = []
        self._contained = 0.0

    def run(self) -> None:
        with self.connected():
            while self.context.working.is_set():
                self.advertise()
                self.pause(1)

    def advertise(self) -> None:
        """Count, and send that or what was held back before."""
        dice = self.dice.random() if self.context.disturbing.is_set() else 1.0
        counted = self._count_plainly() if 0.1 < dice < 0.2 else self._count(with_list=dice < 0.5)
        if counted is None:
            return
        if dice < 0.1:
            self.context.disturb("advertisement late")
            self._late.append(counted)
            return
        self._advertise(*counted)
        if dice < 0.3 and self._late:
            self._advertise(*self._late.pop(self.dice.randrange(len(self._late))))

    def show(self) -> Mapping[str, int]:
        """Room of the throttles of the site, by scope."""
        answer = self.send_until_answered("GET", f"/sites/{self._site}")
        assert answer is not None
        return {each["scope"]: each["room"] for each in answer.json()["throttles"]}

    def _count(self, *, with_list: bool) -> tuple[dict[str, Any], float] | None:
        answer = self.send("POST", f"/sites/{self._site}/watermark", json={})
        if answer is None or not answer.is_success:
            return None
        fetched = time.monotonic()
        self.pause(0.2)
        return {**self._counts(with_list=with_list), "as_of": answer.json()["watermark"]}, fetched

    def _count_plainly(self) -> tuple[dict[str, Any], float]:
        return self._counts(with_list=False), self._contained

    def _counts(self, *, with_list: bool) -> dict[str, Any]:
        truth = self.context.truths[self._site]
        with truth.lock:
            truth.expire()
            return {
                "CurrentJobs": truth.count(),
                "CurrentSubmittingJobs": truth.count(SUBMITTING),
                "CurrentGatheringOutputJobs": truth.count(GATHERING),
                "attempts_seen": list(truth.phases) if with_list else [],
            }

    def _advertise(self, counts: dict[str, Any], contained: float) -> None:
        for scope in self._scopes:
            sent = time.monotonic()
            name, *below = scope.split("/")
            path = "".join(f"/{kind}/{each}" for kind, each in zip(("ces", "queues"), below, strict=False))
            answer = self.send("POST", f"/sites/{name}{path}/advertisement", json=counts)
            answered = time.monotonic()
            if answer is None or (answer.is_success and answer.json()["accepted"]):
                self.context.adverts.append(
                    Advert(
                        scope=scope,
                        sent=sent,
                        answered=answered,
                        contained=contained,
                        busy=counts["CurrentSubmittingJobs"] + counts["CurrentGatheringOutputJobs"],
                        listed=frozenset(counts["attempts_seen"]),
                        sure=answer is not None,
                    )
                )
        self._contained = time.monotonic()


class User(Player):
    """Keeps jobs waiting, and kills or reschedules one now and then."""

    def __init__(
        self, context: Context, name: str, token: str, *, backlog: int, ledger: Path, real: bool
    ) -> None:
        super().__init__(context, name, token)
        self._backlog, self._ledger, self._real = backlog, ledger, real
        self.submitted: dict[int, float] = {}  #: when each acknowledged job was acknowledged
        self.killed: dict[int, float] = {}  #: when each job was last killed

    def run(self) -> None:
        with self.connected():
            while self.context.working.is_set() and self.context.disturbing.is_set():
                if self._count_waiting() < self._backlog:
                    self.submit(self.dice.randint(1, 10))
                self._control()
                self.pause(1)

    def submit(self, number: int) -> None:
        """Submit so many jobs; without an answer again, the same under the same key."""
        jobs = [site.make_job(self.dice, self._ledger, real=self._real) for _ in range(number)]
        request = {"json": {"jobs": jobs}, "headers": {"Idempotency-Key": uuid.uuid4().hex}}
        sent = time.monotonic()
        while (answer := self.send("POST", "/jobs", **request)) is None:
            self.pause(1)
        if answer.status_code != 201:
            return
        job_ids = answer.json()["job_ids"]
        for job_id in job_ids:
            if job_id in self.submitted:
                self.context.add_flaw(f"job {job_id} was given out twice as an id")
            self.submitted[job_id] = time.monotonic()
            self.context.history.add(self.name, "submitted", job_id)
        if self.dice.random() < 0.1:
            self._submit_again(request, job_ids, sent)

    def _count_waiting(self) -> int:
        answer = self.send("GET", "/jobs/summary", params={"by": "status"})
        if answer is None:
            return self._backlog
        counts = {row["status"]: row["count"] for row in answer.json()["summary"]}
        return sum(
            counts.get(status, 0) for status in ("Received", "Checking", "Waiting", "Rescheduled", "Parked")
        )

    def _submit_again(self, request: dict[str, Any], job_ids: list[int], sent: float) -> None:
        self.context.disturb("submission repeated")
        again = self.send("POST", "/jobs", **request)
        if again is not None and again.json()["job_ids"] != job_ids:
            if not self.context.history.recently_lost(sent):
                self.context.add_flaw(f"job {job_ids[0]}: submitted again under its key as {again.json()}")
            self.submitted.update(dict.fromkeys(again.json()["job_ids"], time.monotonic()))
        other = self.send("POST", "/jobs", **{**request, "json": {"jobs": [{"Executable": "other"}]}})
        if other is not None and other.is_success and not self.context.history.recently_lost(sent):
            self.context.add_flaw(f"job {job_ids[0]}: another submission was accepted under its key")

    def _control(self) -> None:
        if not self.submitted or self.dice.random() < 0.5:
            return
        job_id = self.dice.choice(list(self.submitted)[-60:])
        what = self.dice.choice(["kill", "reschedule", "reschedule"])
        self.context.disturb(what)
        if what == "kill":
            self.killed[job_id] = time.monotonic()
        refused = (404, 409) if self.context.history.recently_lost(self.submitted[job_id]) else (409,)
        answer = self.send("POST", f"/jobs/{job_id}/{what}", refused=refused)
        self.context.history.add(self.name, f"{what}: {answer and answer.status_code}", job_id)


class Administrator(Player):
    """Changes the configuration in every way, bans a site, and sends what has to be refused."""

    link = "administrators"

    def __init__(self, context: Context, name: str, token: str, *, every: float) -> None:
        super().__init__(context, name, token)
        self._every = every
        self._changes = 0

    def run(self) -> None:
        with self.connected():
            while self.context.working.is_set() and self.context.disturbing.is_set():
                self.dice.choice(
                    [
                        self._limit,
                        self._limit,
                        self._edit,
                        self._edit,
                        self._wrong,
                        self._replace,
                        self._roll_back,
                        self._ban,
                    ]
                )()
                self.pause(2 * self._every)

    def reset(self) -> None:
        """The configuration as it was at first, and no ban."""
        with self.connected():
            while (answer := self._put(site.RESOURCES)) is None or not answer.is_success:
                self.pause(1)
            self.send_until_answered("POST", f"/sites/{site.PLAIN}/allow", refused=(404, 409))

    def _version(self) -> str | None:
        answer = self.send("GET", "/config")
        return answer.headers["ETag"] if answer is not None and answer.is_success else None

    def _patch(self, body: dict[str, Any], *refused: int) -> httpx.Response | None:
        version = self._version()
        if version is None:
            return None
        self._changes += 1
        self.context.disturb("configuration change")
        headers = {"If-Match": version}
        answer = self.send("PATCH", "/config", json=body, headers=headers, refused=(409, 422, *refused))
        self._check_refusal(answer, *refused)
        self.context.history.add(self.name, f"config {body}: {answer and answer.status_code}")
        return answer

    def _check_refusal(self, answer: httpx.Response | None, *refused: int) -> None:
        """A release that went back cannot read what the next one stored; the administrator returns then."""
        if answer is None or answer.is_success or answer.status_code in (409, *refused):
            return
        if next_release.OPTION not in answer.text:
            self.context.add_flaw(f"{self.name}: {answer.status_code} {answer.text[:300]}")

    def _put(self, text: str) -> httpx.Response | None:
        version = self._version()
        if version is None:
            return None
        self.context.disturb("configuration change")
        change = self._begin_limit()
        body = {"text": text, "message": "campaign"}
        answer = self.send("PUT", "/config", json=body, headers={"If-Match": version}, refused=(409, 422))
        self._check_refusal(answer)
        self._end_limit(change, site.MOST)
        self.context.history.add(self.name, f"whole configuration: {answer and answer.status_code}")
        return answer

    def _limit(self) -> None:
        limit = self.dice.choice([site.FEWER, site.MOST])
        change = self._begin_limit()
        answer = self._patch({"set": {site.LIMIT_PATH: limit}})
        unsure = answer is None or not answer.is_success
        self._end_limit(change, site.MOST if unsure else limit)

    def _begin_limit(self) -> int:
        """Note that any limit may be in force from now on: a change takes effect before its answer comes."""
        self.context.limits.append((time.monotonic(), NEVER, site.MOST))
        return len(self.context.limits) - 1

    def _end_limit(self, change: int, limit: int) -> None:
        sent, _, _ = self.context.limits[change]
        self.context.limits[change] = sent, time.monotonic(), limit

    def _edit(self) -> None:
        name, queue = f"Resources/Sites/LCG.New{self.dice.randrange(3)}.org", f"{site.PLAIN}/CEs/ce/Queues/q"
        self._patch(
            self.dice.choice(
                [
                    {"set": {f"{name}/CEs/ce/Queues/q/CPUTime": self.dice.randrange(1, 10**6)}},
                    {"remove": [name]},
                    {"set": {f"Resources/Sites/{queue}/Enabled": False}},
                    {"set": {f"Resources/Sites/{queue}/Enabled": True}},
                    {"set": {f"Resources/Sites/{site.PLAIN}/CEs/ce/MaxRAM": self.dice.choice([2000, 8000])}},
                    {"set": {f"Resources/Sites/{site.LEVEL2}/Throttle/MaxJobs": self.dice.choice([4, 6])}},
                    {"set": {f"Operations/{site.VO}/JobScheduling/NarrowSites": self.dice.random() < 0.5}},
                    {"set": {next_release.OPTION: self.dice.random() < 0.5}},
                    {"remove": [next_release.OPTION]},
                    {"set": {f"Registry/Groups/{site.VO}_user/JobShare": self.dice.randrange(1, 9)}},
                    {"set": {f"Resources/Sites/{site.PLAIN}/VOs/{site.VO}/SubmitNote": self._changes}},
                ]
            ),
            400,
            404,
            422,
        )

    def _wrong(self) -> None:
        answer = self._patch({"set": {f"Resources/Sites/{site.PLAIN}/CEs/ce/MaxRAM": "lots"}}, 400, 422)
        if answer is not None and answer.is_success:
            self.context.add_flaw("a wrong configuration was accepted")

    def _replace(self) -> None:
        self._put(site.RESOURCES)

    def _roll_back(self) -> None:
        version = self._version()
        if version is None:
            return
        target = max(1, int(version.strip('"')) - self.dice.randrange(1, 4))
        self.context.disturb("configuration change")
        change = self._begin_limit()
        answer = self.send(
            "POST",
            "/config/rollback",
            json={"version": target},
            headers={"If-Match": version},
            refused=(400, 404, 409, 422),
        )
        self._end_limit(change, site.MOST)
        self.context.history.add(self.name, f"rollback to {target}: {answer and answer.status_code}")

    def _ban(self) -> None:
        answer = self.send_until_answered("POST", f"/sites/{site.PLAIN}/ban", json={"reason": "campaign"})
        banned = time.monotonic()
        self.context.disturb("ban")
        self.pause(6)
        ends = time.monotonic()
        self.send_until_answered("POST", f"/sites/{site.PLAIN}/allow", refused=(404, 409))
        if answer is not None and answer.is_success:
            self.context.bans.append((banned, ends))
