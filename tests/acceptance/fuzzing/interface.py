"""Requests of every role to a service in its own process: as described, wrong, and broken on the wire."""

import http.client
import itertools
import json
import logging
import random
import socket
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any
from urllib.parse import quote, urlencode

import psutil

from examples.servers.starting import free_port
from pilotage.service.auth import keys
from pilotage.service.auth.callers import grant
from pilotage.service.auth.tokens import Tokens
from pilotage.service.pages import sessions
from pilotage.service.pages.navigation import list_pages
from pilotage.service.services import utc_now
from tests.acceptance.fuzzing import mutations, parsers
from tests.acceptance.fuzzing.mutations import WORDS, Flaw
from tests.support.processes import Supervised
from tests.support.routes_by_role import QUEUE
from tests.support.service import CONFIG

log = logging.getLogger(__name__)

#: Seconds without an answer; CPU seconds of the service, and bytes of its memory, for one request.
_HANG, _SLOW, _MEMORY = 180.0, 10.0, 2 << 30
#: Requests after which jobs, leases and the configuration are as they were, and after which counts are
#: logged; callers of one role.
_FURNISH_EVERY, _REPORT_EVERY, _CALLERS = 500, 5000, 100
_ROLES = (None, "user", "user", "pilot", "pilot", "site_admin", "vo_admin", "director", "gateway")
_LIMITS = "  Defaults:\n    Limits: {RequestsPerSecond: 100000, PilotClaimsPerHour: 1000000}\n"
_JOBS = ('Executable = "x";', '[ Executable="x"; Requirements = other.MaxRAM > 1; ]', "{Executable: x}")
_TEXTS: Mapping[str, Sequence[str]] = {
    "jdl": _JOBS,
    "text": (CONFIG, "CEs: {ce1: {MaxRAM: 5}}"),
    "path": ("Resources/Sites/LCG.A.org/MaxRAM", "Resources/Sites/LCG.A.org", "Operations/cms"),
    "vo": ("cms", "dune"),
    "status": ("Done", "Failed", "Waiting"),
}
#: Fields of forms.
_FIELDS = ("jdl", "text", "message", "version", "path", "status", "action", "ids", "q", "by", "name", "url")


@dataclass(frozen=True)
class Answer:
    """What came back."""

    status: int
    content_type: str
    body: bytes


@dataclass
class Service:
    """`pilotage up` on SQLite, and what was made there, by its names in paths and bodies."""

    process: Supervised
    port: int
    tokens: Tokens
    names: dict[str, list[object]] = field(default_factory=dict)
    slots: Iterator[int] = field(default_factory=itertools.count)

    def mint(self, role: str, number: int = 0, stamp: str | None = None) -> str:
        """A token of one of the callers of a role; of a pilot with this stamp, or with one of its number."""
        rights = {
            "user": {"vo": "cms", "user": f"ada{number}"},
            "pilot": {"vo": "cms", "queue": QUEUE, "stamp": stamp or f"p{number}"},
            "site_admin": {"site": "LCG.A.org", "user": f"sam{number}"},
            "vo_admin": {"vo": "cms", "user": f"eve{number}"},
            "director": {"vo": "cms", "site": "LCG.A.org", "user": f"d{number}"},
            "gateway": {"vo": "cms", "site": "LCG.A.org", "user": f"g{number}"},
            "operator": {"user": "root"},
        }[role]
        return self.tokens.mint(grant(role=role, **rights), now=utc_now())[0]

    def call(self, role: str, method: str, path: str, body: object = None, **headers: str) -> Any:
        """What a caller of good will gets; a pilot has a new slot."""
        token = self.mint(role, stamp=f"s{next(self.slots)}")
        head = {"Authorization": f"Bearer {token}", "Content-Type": "application/json", **headers}
        answer = self.send(self.format(method, f"/api/v1{path}", head, json.dumps(body).encode()), method)
        if answer.status >= 400:
            log.info("%s %s of %s: %d %r", method, path, role, answer.status, answer.body[:300])
        return json.loads(answer.body) if answer.status < 300 and answer.body else {}

    def format(self, method: str, target: str, head: Mapping[str, str], body: bytes = b"") -> bytes:
        """A request as it is sent."""
        lines = [f"{method} {target} HTTP/1.1", f"Host: 127.0.0.1:{self.port}", "Connection: close"]
        lines += [f"{name}: {value}" for name, value in head.items()]
        lines += [f"Content-Length: {len(body)}", "", ""]
        return "\r\n".join(lines).encode("latin-1", "replace") + body

    def get(self, target: str) -> Answer:
        """What a stranger gets."""
        return self.send(self.format("GET", target, {}), "GET")

    def send(self, request: bytes, method: str, *, source: str = "127.0.0.1", broken: bool = False) -> Answer:
        """Send one request; OSError and HTTPException if there is no answer."""
        there = ("127.0.0.1", self.port)
        with socket.create_connection(there, timeout=_HANG, source_address=(source, 0)) as client:
            try:
                client.sendall(request)
                if broken:
                    client.shutdown(socket.SHUT_WR)
            except (BrokenPipeError, ConnectionResetError):
                pass  # refused before its end
            answer = http.client.HTTPResponse(client, method=method)
            answer.begin()
            content_type = answer.headers.get("Content-Type", "")
            is_stream = content_type.startswith("text/event-stream")
            return Answer(answer.status, content_type, b"" if is_stream else answer.read())

    def furnish(self) -> None:
        """Let there be jobs that wait, one that runs, open sites and the first configuration."""
        site, ce, queue = QUEUE.split("/")
        version = self.call("operator", "GET", "/config")["version"]
        body = {"text": _CONFIGURATION, "message": ""}
        changed = self.call("operator", "PUT", "/config", body, **{"If-Match": str(version)})
        for each in ("LCG.A.org", "LCG.B.org"):
            self.call("operator", "POST", f"/sites/{each}/allow")
        jobs = self.call("user", "POST", "/jobs", {"jobs": [{"Executable": "x"}] * 3}).get("job_ids", [])
        wanted = {"Site": site, "GridCE": ce, "Queue": queue, "CPUTime": 100_000}
        matches = self.call("pilot", "POST", "/matcher/requestJob", wanted).get("matches", [])
        leases = [each["lease"] for each in matches]
        self.names |= {"site": [site], "ce": [ce], "queue": [queue, QUEUE], "stamp": ["p0", "s3"]}
        self.names |= {"version": [version, changed.get("version", version)]}
        for name, found in (("job_id", jobs), ("lease", leases)):
            self.names[name] = [*self.names.get(name, ()), *found][-20:]
        pools = self.call("user", "GET", "/pools").get("pools", [])
        self.names["pool_id"] = [each["pool_id"] for each in pools if "pool_id" in each] or ["0"]


_CONFIGURATION = CONFIG.replace("Operations:\n  Defaults:\n", f"Operations:\n{_LIMITS}")


@dataclass(frozen=True, eq=False)
class Operation:
    """One route."""

    method: str
    path: str
    parameters: Sequence[Mapping[str, Any]] = ()
    bodies: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)  #: schemas by content type
    is_page: bool = False

    def __str__(self) -> str:
        return f"{self.method} {self.path}"


def _list_operations(description: Mapping[str, Any]) -> Iterator[Operation]:
    for path, methods in description["paths"].items():
        for method, about in methods.items():
            contents = about.get("requestBody", {}).get("content", {})
            bodies = {kind: content.get("schema", {}) for kind, content in contents.items()}
            yield Operation(method.upper(), path, about.get("parameters", ()), bodies)
    for router in list_pages():
        for route in router.routes:
            for method in sorted(getattr(route, "methods", ())):
                form: dict[str, Any] = {"application/x-www-form-urlencoded": {}} if method != "GET" else {}
                yield Operation(method, getattr(route, "path", "/"), (), form, is_page=True)


@dataclass(frozen=True)
class Request:
    """A request of one role, from an address of its own."""

    operation: Operation
    role: str | None
    source: str
    content: bytes
    is_broken: bool  #: on the wire


@dataclass
class _Generator:
    """Requests from the description of the interface."""

    service: Service
    schemas: Mapping[str, Any]
    operations: Sequence[Operation]
    archives: Sequence[str]
    refused: set[tuple[str | None, Operation]] = field(default_factory=set)  #: roles that may not

    def make(self, dice: random.Random) -> Request:
        """A request; mostly of a role that was not refused."""
        operation = dice.choice(self.operations)
        roles = dice.choices(_ROLES, k=4)
        role = next((each for each in roles if (each, operation) not in self.refused), roles[0])
        target = operation.path
        for name in [part[1:-1] for part in operation.path.split("/") if part.startswith("{")]:
            value = self._text(dice, name.removesuffix(":path"))
            target = target.replace(f"{{{name}}}", _escape(value) or "x", 1)
        queries = [each for each in operation.parameters if each["in"] == "query" and dice.random() < 0.4]
        pairs = [(each["name"], self._value(dice, each.get("schema", {}), each["name"])) for each in queries]
        pairs += [(dice.choice(_FIELDS), self._text(dice, "")) for _ in range(dice.choice((0, 0, 0, 1)))]
        if pairs:
            target += "?" + "&".join(f"{_escape(name)}={_escape(_plain(value))}" for name, value in pairs)
        head, body = self._head(dice, operation, role), b""
        if operation.bodies and dice.random() < 0.97:
            kind = dice.choice(sorted(operation.bodies))
            body = self._body(dice, kind, operation.bodies[kind])
            head["Content-Type"] = (
                kind if dice.random() < 0.97 else dice.choice(("text/plain", "a/b", "x" * 300))
            )
        request = self.service.format(operation.method, target, head, body)
        broken = dice.random() < 0.04
        if broken:
            text = mutations.mutate(dice, [request.decode("latin-1")])
            request = text.encode("latin-1", "replace")
        source = f"127.0.{dice.randrange(1, 5)}.{dice.randrange(1, 250)}"
        return Request(operation, role, source, request, is_broken=broken)

    def _head(self, dice: random.Random, operation: Operation, role: str | None) -> dict[str, str]:
        head = {}
        if role is not None:
            token = self.service.mint(role, dice.choice((0, dice.randrange(_CALLERS))))
            if dice.random() < 0.02:
                token = _escape(mutations.mutate(dice, [token]))
            if operation.is_page:
                head["Cookie"] = f"pilotage-{self.service.port}={token}"
                head["X-CSRF-Token"] = sessions.csrf_of(token)
                head["Origin"] = f"http://127.0.0.1:{self.service.port}"
            else:
                head["Authorization"] = f"Bearer {token}"
        if operation.path.startswith("/api/v1/config") and dice.random() < 0.9:
            head["If-Match"] = str(self.service.names["version"][-1])
        for name in ("Idempotency-Key", "If-None-Match", "Range", "Accept", "X-Request-Id", "Last-Event-ID"):
            if dice.random() < 0.03:
                head[name] = _escape(self._text(dice, ""))
        return head

    def _body(self, dice: random.Random, kind: str, schema: Mapping[str, Any]) -> bytes:
        if kind == "application/json":
            text = json.dumps(self._value(dice, schema, ""))
            text = mutations.mutate(dice, [text]) if dice.random() < 0.1 else text
            return text.encode(errors="surrogatepass")
        if kind == "application/x-www-form-urlencoded":
            names = dice.sample(_FIELDS, dice.randrange(6))
            return urlencode({name: self._text(dice, name) for name in names}, errors="replace").encode()
        return mutations.mutate(dice, self.archives).encode("latin-1", "replace")

    def _value(self, dice: random.Random, schema: Mapping[str, Any], name: str, depth: int = 0) -> object:
        if dice.random() < 0.04:
            return _hostile(dice)
        if "$ref" in schema:
            schema = self.schemas[schema["$ref"].rpartition("/")[2]]
        for several in ("anyOf", "oneOf"):
            if several in schema:
                return self._value(dice, dice.choice(schema[several]), name, depth + 1)
        if "enum" in schema or "const" in schema:
            return dice.choice(schema.get("enum") or [schema["const"]])
        kind = schema.get("type")
        if kind == "object" or "properties" in schema:
            return self._object(dice, schema, depth)
        if kind == "array":
            items, one = schema.get("items", {}), name.removesuffix("s")
            return [self._value(dice, items, one, depth + 1) for _ in range(dice.choice((0, 1, 1, 2, 5)))]
        if kind in {"integer", "number"}:
            return self._number(dice, name)
        if kind == "boolean":
            return dice.random() < 0.5
        return self._text(dice, name)

    def _number(self, dice: random.Random, name: str) -> object:
        if "second" in name or "timeout" in name or "wait" in name:
            return 0.1
        known = self.service.names.get("job_id" if name == "id" else name)
        return dice.choice(known or (0, 1, 2, 100, 3600, -1, 2**31, 2**63, 1.5))

    def _object(self, dice: random.Random, schema: Mapping[str, Any], depth: int) -> dict[str, object]:
        wanted = schema.get("required", ())
        fields = {
            each: self._value(dice, below, each, depth + 1)
            for each, below in schema.get("properties", {}).items()
            if dice.random() < (0.97 if each in wanted else 0.4 / (depth + 1))
        }
        below = schema.get("additionalProperties")
        more = dice.randrange(3) if isinstance(below, dict) or not fields else 0
        below = below if isinstance(below, dict) else {}
        for _ in range(more):
            fields[self._text(dice, "path")] = self._value(dice, below, "", depth + 1)
        return fields

    def _text(self, dice: random.Random, name: str) -> str:
        known = [*map(str, self.service.names.get(name, ())), *_TEXTS.get(name, ())]
        if known and dice.random() < 0.85:
            text = dice.choice(known)
            return mutations.mutate(dice, [text]) if dice.random() < 0.1 else text
        return dice.choice((*WORDS, "x", "cms", "LCG.A.org", "1", "2026-01-01T00:00:00Z"))


def _hostile(dice: random.Random) -> object:
    nested: object = dice.choice(WORDS)
    for _ in range(dice.choice((0, 0, 1, 50))):
        nested = [nested] if dice.random() < 0.5 else {dice.choice(WORDS): nested}
    return dice.choice((None, True, -1, 2**63, 10**30, 1e308, "", [], {}, nested, nested, ["x"] * 2000))


def _plain(value: object) -> str:
    return value if isinstance(value, str) else json.dumps(value)


def _escape(text: str) -> str:
    return quote(text, safe="", errors="replace")


@contextmanager
def running(directory: Path) -> Iterator[Service]:
    """`pilotage up` with a configuration of two sites and two VOs."""
    (directory / "resources.yaml").write_text(_CONFIGURATION)
    port, key = free_port(), directory / "signing-key.pem"
    command = ("up", "--port", str(port), "--resources", str(directory / "resources.yaml"))
    environment = {"PILOTAGE_HOME": str(directory / "home"), "PILOTAGE_KEY": str(key)}
    process = Supervised("up", command, env=environment, log=directory / "up.log")
    service = Service(process, port, Tokens(keys.load_or_create(key)))
    process.start()
    try:
        deadline = time.monotonic() + 300
        while not _is_ready(service):
            if time.monotonic() > deadline or not process.is_running:
                raise RuntimeError(f"the service does not start:\n{process.log.read_text()[-3000:]}")
            time.sleep(0.2)
        yield service
    finally:
        process.stop()


def _is_ready(service: Service) -> bool:
    try:
        return service.get("/readyz").status == 200
    except (OSError, http.client.HTTPException):
        return False


def find_flaws(numbers: range, *, seed: int) -> Iterator[Flaw]:
    """Send these requests, one after another, to a service that is started for them."""
    with tempfile.TemporaryDirectory(prefix="fuzzing-") as directory, running(Path(directory)) as service:
        yield from _find_flaws(service, numbers, seed)


def _find_flaws(service: Service, numbers: range, seed: int) -> Iterator[Flaw]:
    described = json.loads(service.get("/openapi.json").body)
    operations = list(_list_operations(described))
    archives = list(parsers.list_archives())
    generator = _Generator(service, described["components"]["schemas"], operations, archives)
    with service.process.log.open(errors="replace") as lines:
        trial = _Trial(service, psutil.Process(service.process.pid), lines)
        began = time.monotonic()
        for number in numbers:
            if number % _FURNISH_EVERY == 0 or number == numbers.start:
                service.furnish()
            request = generator.make(mutations.roll(seed, "interface", number))
            text = request.content.decode("latin-1")
            for problem in trial.send(request):
                yield Flaw(str(request.operation), number, text, problem)
            if trial.status == 403:
                generator.refused.add((request.role, request.operation))
            if not service.process.is_running:
                yield Flaw(str(request.operation), number, text, "the service has ended")
                return
            if (number + 1) % _REPORT_EVERY == 0 or number == numbers.stop - 1:
                took = time.monotonic() - began
                log.info(
                    "%d requests to %d operations in %.0f s: %s", number + 1, len(operations), took, trial
                )


@dataclass
class _Trial:
    """Requests and what came back."""

    service: Service
    process: psutil.Process
    lines: IO[str]
    counts: Counter[str] = field(default_factory=Counter)
    slowest: tuple[float, str] = (0.0, "")
    status: int = 0  #: of the last one; 0: no answer

    def __str__(self) -> str:
        kinds = ", ".join(f"{count} {kind}" for kind, count in sorted(self.counts.items()))
        megabytes = self.process.memory_info().rss >> 20
        return "{}; slowest: {:.2f} s of CPU time, {}; {} MiB".format(kinds, *self.slowest, megabytes)

    def send(self, request: Request) -> Iterator[str]:
        """Send a request; all that is wrong with the answer, the log or what it cost."""
        before = self.process.cpu_times()
        answer, problem = self._ask(request)
        self.status = answer.status if answer else 0
        self.counts[str(self.status) if answer else "closed"] += 1
        if problem is None and answer is not None:
            problem = _judge(answer, request)
        if problem is not None:
            yield problem
        if "Traceback" in (written := self.lines.read()):
            yield f"in the log: {written[-3000:]}"
        if self.process.is_running() and self.process.status() != psutil.STATUS_ZOMBIE:
            after, bytes_used = self.process.cpu_times(), self.process.memory_info().rss
            took = after.user + after.system - before.user - before.system
            self.slowest = max(self.slowest, (took, str(request.operation)))
            if took > _SLOW:
                yield f"{took:.1f} s of CPU time"
            if bytes_used > _MEMORY:
                yield f"{bytes_used >> 20} MiB of memory"

    def _ask(self, request: Request) -> tuple[Answer | None, str | None]:
        method, source, broken = request.operation.method, request.source, request.is_broken
        try:
            return self.service.send(request.content, method, source=source, broken=broken), None
        except TimeoutError:
            return None, f"no answer in {_HANG:g} s"
        except (OSError, http.client.HTTPException, ValueError) as error:
            return None, None if broken else f"{type(error).__name__}: {error}"


def _judge(answer: Answer, request: Request) -> str | None:
    """What is wrong with an answer."""
    if answer.status >= 500 and answer.status != 503:
        return f"{answer.status}: {answer.body[:500]!r}"
    operation = request.operation
    if answer.status >= 400 and operation.path.startswith("/api/") and not request.is_broken:
        try:
            fits = set(json.loads(answer.body)["error"]) == {"code", "message", "details"}
        except (ValueError, LookupError, TypeError):
            fits = operation.method == "HEAD"
        if not fits:
            return f"{answer.status} without an error in the one shape: {answer.body[:300]!r}"
    return None
