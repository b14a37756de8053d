"""The service as pilots see it, in memory: hands out jobs under leases and keeps the rules of the hand-over.

It can be away, lose answers, close attempts and kill jobs at will. What it does as the real one does is held
by the suite that runs against both (`test_hand_over.py`).
"""

import contextlib
import json
import socket
import threading
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from email.message import Message
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Self
from urllib.parse import parse_qsl, unquote, urlsplit

Headers = Mapping[str, str] | Message
TOKEN = "the.pilots.token"
#: Of the pilot with the stamp `abc`, which tells the service of its end.
STAMPED_TOKEN = "head.eyJzdGFtcCI6ICJhYmMifQ.signature"
SECRET = "the-secret-of-a-pilot"
QUEUE = "LCG.Test.org/ce01/long"


class Refusal(Exception):
    def __init__(self, status: int, code: str, message: str = "", retry_after: int | None = None) -> None:
        super().__init__(message or code)
        self.status, self.code, self.retry_after = status, code, retry_after


@dataclass
class Attempt:
    epoch: int
    lease: str
    started: bool = False
    ending: bool = False
    closed_as: str | None = None
    request: str | None = None
    answer: dict[str, Any] = field(default_factory=dict)
    heartbeats: list[dict[str, Any]] = field(default_factory=list)
    report: dict[str, Any] | None = None


@dataclass
class Job:
    job_id: int
    description: Mapping[str, Any]
    sandbox: bytes | None
    status: str = "Waiting"
    minor_status: str = ""
    application_status: str = ""
    exit_code: int | None = None
    output: bytes | None = None
    attempts: list[Attempt] = field(default_factory=list)

    @property
    def attempt(self) -> Attempt:
        return self.attempts[-1]


class LeaseServer:
    """Used with `with`."""

    def __init__(self) -> None:
        self.jobs: dict[int, Job] = {}
        self.parameters: dict[str, Any] = {"CPUTime": 100_000, "MaxRAM": 4000}
        self.pools = ["a" * 64]
        self.pool_page: int | None = None  #: pools in one answer; None: all, and no page
        self.requests: list[tuple[str, str, Any]] = []  #: method, path, body, as they came
        self.requested: dict[str, list[int]] = {}  #: request_id to jobs
        self.lease_time = timedelta(minutes=5)
        self.retry_after = 1
        self.redeemed_by: str | None = None  #: request_id of the exchange of SECRET
        self.token_life = timedelta(days=1)
        self.run_on_seconds: float | None = None
        self.pilot_status: dict[str, Any] = {}
        self._lose: dict[str, int] = {}
        self._refuse: dict[str, tuple[Refusal, int | None]] = {}
        self._changed = threading.Condition()
        self._http: ThreadingHTTPServer | None = None
        self._held = socket.socket()
        self._held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        self._held.bind(("127.0.0.1", 0))  # it does not listen: nobody else gets the port while it is away
        self._address: tuple[str, int] = self._held.getsockname()

    # What a test does.

    def __enter__(self) -> Self:
        self.come_back()
        return self

    def __exit__(self, *_: object) -> None:
        self.go_away()
        self._held.close()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._address[1]}"

    def come_back(self) -> None:
        """Listen, at the address it had before."""
        handler = type("Handler", (_Handler,), {"lease_server": self})
        self._http = _Http(self._address, handler)
        threading.Thread(target=self._http.serve_forever, args=(0.02,), daemon=True).start()

    def go_away(self) -> None:
        """Refuse connections."""
        if self._http is not None:
            self._http.shutdown()
            self._http.server_close()
            self._http = None

    @contextlib.contextmanager
    def away(self) -> Iterator[None]:
        self.go_away()
        try:
            yield
        finally:
            self.come_back()

    def add(self, description: Mapping[str, Any], sandbox: bytes | None = None) -> Job:
        with self._changed:
            job = Job(len(self.jobs) + 1, description, sandbox)
            self.jobs[job.job_id] = job
            return job

    def kill(self, job: Job) -> None:
        with self._changed:
            job.status = "Killed"
            job.attempt.ending = True

    def close(self, job: Job, closed_as: str = "rescheduled") -> None:
        """Close the attempt behind the pilot's back."""
        with self._changed:
            job.attempt.closed_as = closed_as
            job.status = "Rescheduled"

    def lose_answers(self, ending: str, count: int) -> None:
        """Do what the next requests to paths with this ending ask, but do not answer."""
        self._lose[ending] = count

    def refuse(self, ending: str, refusal: Refusal | None, *, count: int | None = None) -> None:
        """Refuse so many requests to paths with this ending, without a number all; None: no more."""
        with self._changed:
            self._refuse.pop(ending, None)
            if refusal is not None:
                self._refuse[ending] = (refusal, count)

    def wait_for(self, condition: Any, timeout: float = 300) -> None:
        """Wait until a condition holds; it is looked at after every request."""
        with self._changed:
            assert self._changed.wait_for(condition, timeout), [vars(job) for job in self.jobs.values()]

    def bodies(self, ending: str) -> list[Any]:
        return [body for _, path, body in self.requests if path.endswith(ending)]

    # What a pilot asks.

    def serve(self, method: str, path: str, headers: Headers, body: bytes, query: Mapping[str, str]) -> Any:
        with self._changed:
            try:
                return self._serve(method, path, headers, body, query)
            finally:
                self._changed.notify_all()

    def loses(self, path: str) -> bool:
        with self._changed:
            for ending, left in self._lose.items():
                if path.endswith(ending) and left:
                    self._lose[ending] = left - 1
                    return True
            return False

    def _serve(self, method: str, path: str, headers: Headers, body: bytes, query: Mapping[str, str]) -> Any:
        said: Any = body if path.endswith("/output") else json.loads(body or b"{}")
        self.requests.append((method, path, said))
        shown = headers.get("Authorization", "").removeprefix("Bearer ")
        if shown not in ((SECRET,) if path.endswith("/token") else (TOKEN, STAMPED_TOKEN)):
            raise Refusal(401, "not_authenticated")
        for ending, (refusal, left) in self._refuse.items():
            if path.endswith(ending) and left != 0:
                self._refuse[ending] = (refusal, None if left is None else left - 1)
                raise refusal
        parts = [unquote(part) for part in path.removeprefix("/api/v1/").split("/")]
        if parts[0] in ("pilots", "tokens"):
            return self._of_pilot(parts, said)
        match parts:
            case ["resources", "queues", *names]:
                return self._queue("/".join(names))
            case ["matcher", "getSubmitPoolsForQueue"]:
                return self._page_of_pools(said["queues"], query)
            case ["matcher", "requestJob"]:
                return self._request_job(said)
            case ["leases", lease, what]:
                return self._lease(lease, what, said)
        raise Refusal(404, "not_found", path)

    def _page_of_pools(self, queues: list[str], query: Mapping[str, str]) -> dict[str, Any]:
        """A page, or all of them, as a service of 1.0 answers."""
        if self.pool_page is None:
            return {"pools": dict.fromkeys(queues, self.pools), "unknown": []}
        assert int(query["limit"]) >= self.pool_page
        begin = int(query.get("after", "0"))
        end = begin + self.pool_page
        cursor = str(end) if end < len(self.pools) else None
        return {"pools": dict.fromkeys(queues, self.pools[begin:end]), "unknown": [], "next": cursor}

    def _of_pilot(self, parts: list[str], said: Any) -> Any:
        match parts:
            case ["pilots", stamp, "status"]:
                self.pilot_status = {"stamp": stamp, **said}
                return self.pilot_status
            case ["pilots", _, "token"]:
                return self._exchange(said["request_id"])
            case ["tokens", "renew"]:
                return self._token()
        raise Refusal(404, "not_found", "/".join(parts))

    def _exchange(self, request_id: str) -> dict[str, Any]:
        self.redeemed_by = self.redeemed_by or request_id
        if request_id != self.redeemed_by:
            raise Refusal(409, "secret_used")
        return self._token()

    def _token(self) -> dict[str, Any]:
        return {"token": TOKEN, "expires_at": (datetime.now(UTC) + self.token_life).isoformat()}

    def _queue(self, queue: str) -> dict[str, Any]:
        if queue != QUEUE:
            raise Refusal(404, "queue_not_found", f"{queue}: unknown queue, did you mean {QUEUE}?")
        return {"parameters": {name: {"value": value} for name, value in self.parameters.items()}}

    def _request_job(self, said: Mapping[str, Any]) -> dict[str, Any]:
        request_id = said["request_id"]
        if request_id not in self.requested:
            waiting = [job for job in self.jobs.values() if job.status == "Waiting"][: said["count"]]
            if not waiting:
                return {"matches": [], "reason": "no_task_queue", "retry_after": self.retry_after}
            for job in waiting:
                self._claim(job)
            self.requested[request_id] = [job.job_id for job in waiting]
        jobs = [self.jobs[job_id] for job_id in self.requested[request_id]]
        return {"matches": [self._match(job) for job in jobs], "warnings": []}

    def _claim(self, job: Job) -> None:
        epoch = len(job.attempts) + 1
        job.attempts.append(Attempt(epoch, f"lease-{job.job_id}-{epoch}"))
        job.status = "Matched"

    def _match(self, job: Job) -> dict[str, Any]:
        return {
            "job_id": job.job_id,
            "epoch": job.attempt.epoch,
            "lease": job.attempt.lease,
            "lease_expires_at": (datetime.now(UTC) + self.lease_time).isoformat(),
            "description": dict(job.description),
            "gpus": job.description.get("GPUs"),
        }

    def _lease(self, lease: str, what: str, said: Any) -> Any:
        found = [(job, each) for job in self.jobs.values() for each in job.attempts if each.lease == lease]
        if not found:
            raise Refusal(404, "lease_not_found", lease)
        job, attempt = found[0]
        request = json.dumps({what: said}, sort_keys=True) if what in ("finish", "release") else None
        if request is not None and request == attempt.request:
            return attempt.answer
        if attempt.closed_as is not None:
            raise Refusal(409, "stale_lease", f"attempt {attempt.epoch} is closed: {attempt.closed_as}")
        answer = getattr(self, f"_{what}")(job, attempt, said)
        if request is not None:
            attempt.request, attempt.answer = request, answer
        return answer

    def _sandbox(self, job: Job, _attempt: Attempt, _said: Any) -> bytes:
        if job.sandbox is None:
            raise Refusal(404, "blob_not_found", "no sandbox")
        return job.sandbox

    def _output(self, job: Job, _attempt: Attempt, said: bytes) -> dict[str, Any]:
        job.output = said
        return {"output": "sha256:…", "size": len(said)}

    def _start(self, job: Job, attempt: Attempt, _said: Any) -> dict[str, Any]:
        attempt.started = True
        if not attempt.ending:
            job.status = "Running"
        return {"job_id": job.job_id, "epoch": attempt.epoch, **self._news(attempt)}

    def _news(self, attempt: Attempt) -> dict[str, Any]:
        return {"commands": ["kill"] if attempt.ending else [], "run_on_seconds": self.run_on_seconds}

    def _heartbeat(self, job: Job, attempt: Attempt, said: Any) -> dict[str, Any]:
        attempt.heartbeats.append(said)
        if job.status == "Stalled":
            job.status = "Running"
        return self._news(attempt)

    def _finish(self, job: Job, attempt: Attempt, said: Any) -> dict[str, Any]:
        if not attempt.started and not attempt.ending:
            raise Refusal(409, "illegal_transition", "it was never started")
        attempt.closed_as, attempt.report = "finished", said
        if not attempt.ending:
            job.status = said["status"]
        job.minor_status, job.application_status = said["minor_status"], said["application_status"]
        job.exit_code = said["exit_code"]
        return {"job_id": job.job_id, "epoch": attempt.epoch, "status": job.status}

    def _release(self, job: Job, attempt: Attempt, said: Any) -> dict[str, Any]:
        attempt.closed_as = "released"
        if not attempt.ending:
            job.status = "Rescheduled" if attempt.started else "Waiting"
        job.application_status = said["reason"]
        return {"job_id": job.job_id, "epoch": attempt.epoch, "status": job.status}


class _Http(ThreadingHTTPServer):
    daemon_threads = True
    allow_reuse_address = True
    allow_reuse_port = True


class _Handler(BaseHTTPRequestHandler):
    lease_server: LeaseServer

    def log_message(self, *_: object) -> None:
        pass

    def _handle(self) -> None:
        length = int(self.headers.get("Content-Length") or 0)
        body = self.rfile.read(length)
        address = urlsplit(self.path)
        path, query = address.path, dict(parse_qsl(address.query))
        try:
            status, answer, headers = (
                200,
                self.lease_server.serve(self.command, path, self.headers, body, query),
                {},
            )
        except Refusal as refusal:
            error = {"code": refusal.code, "message": str(refusal), "details": {}}
            status, answer = refusal.status, {"error": error}
            headers = {} if refusal.retry_after is None else {"Retry-After": str(refusal.retry_after)}
        if self.lease_server.loses(path):
            self.close_connection = True
            return
        data = answer if isinstance(answer, bytes) else json.dumps(answer).encode()
        self.send_response(status)
        for name, value in {**headers, "Content-Length": str(len(data))}.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(data)

    do_GET = do_POST = do_PUT = _handle  # noqa: N815 - http.server wants these names
