"""Submission of jobs: the service plans requests, and names their files, which are packed and sent."""

import json
import re
import shutil
import tarfile
import tempfile
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import BinaryIO, TypeVar

from pilotage.client.api import ApiError, Json, ServiceAway, ServiceClient, is_passing, wait_out
from pilotage.client.errors import WrongUsage
from requirements.errors import PilotageError, format_count, format_ids

#: Descriptions that are planned together, and bytes of them: less than the service reads in one request.
_SOURCES = 1000
_BYTES = 3_000_000
#: Statuses of services that plan nothing, or not so much.
_NOT_PLANNED = frozenset({404, 405, 413})

_Answer = TypeVar("_Answer")
#: One value of each parameter makes a job: names with values.
Parameters = Mapping[str, Sequence[str]]


@dataclass(frozen=True, slots=True, kw_only=True)
class JobSource:
    """A text with one or several descriptions, or one as keywords."""

    content: str | Mapping[str, object]
    name: str  #: for messages
    directory: Path  #: relative names in `InputSandbox` begin here

    @classmethod
    def from_file(cls, file: Path) -> "JobSource":
        """The text of a file; `WrongUsage` if it is not UTF-8."""
        try:
            text = file.read_text(encoding="utf-8")
        except UnicodeDecodeError as error:
            line = error.object.count(b"\n", 0, error.start) + 1
            message = f"byte 0x{error.object[error.start]:02x} is not UTF-8, which the file has to be"
            raise WrongUsage(f"{file}:{line}: {message}") from None
        return cls(content=text, name=str(file), directory=file.parent)

    def as_json(self, *, place: int) -> Json:
        """The source as services read it."""
        kind = "jdl" if isinstance(self.content, str) else "job"
        return {kind: self.content, "name": self.name, "place": place}


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedJobs:
    """A request for jobs with the same input sandbox."""

    parts: Sequence[tuple[str | Mapping[str, object], int]]  #: descriptions, and how often each is sent
    is_text: bool
    files: tuple[Path, ...]  #: of the input sandbox
    vo: str | None  #: whose sandbox it is; None: that of the token
    jobs: int
    warnings: tuple[str, ...] = ()  #: of files that nobody sends, and of the whole plan
    is_linked: bool = False  #: jobs wait for others by name, so that all are sent in one request


#: Seconds that a submission waits for a service that is away: a failover of its database takes half of them.
PATIENCE = 60.0


#: Visible characters of ASCII, and room for the numbers of further requests.
_KEY = re.compile(r"[!-~]{1,200}")


def make_key() -> str:
    """A new idempotency key."""
    return str(uuid.uuid4())


@dataclass(frozen=True, slots=True, kw_only=True)
class Repetition:
    """How a submission is repeated: for how long, and under which key, by which nothing is stored twice."""

    patience: float = PATIENCE  #: seconds
    key: str = field(default_factory=make_key)
    warn: Callable[[str], object] = lambda _: None  #: gets a line when it begins to wait

    def __post_init__(self) -> None:
        """`WrongUsage` for a key that no request can have, before any of them is sent."""
        if not _KEY.fullmatch(self.key):
            raise WrongUsage(
                f"the idempotency key {self.key[:50]!r} is not allowed; "
                "allowed are 1 to 200 visible characters of ASCII"
            )

    def wait_out(self, request: Callable[[], _Answer]) -> _Answer:
        """The answer to a request, once the service gives one."""
        return wait_out(request, patience=self.patience, warn=self.warn)

    def key_of(self, number: int) -> str:
        """The key of one of several requests, the same whenever the same jobs are submitted by this key."""
        return self.key if number == 0 else f"{self.key}/{number}"


def plan_requests(
    service: ServiceClient,
    sources: Sequence[JobSource],
    *,
    parameters: Parameters,
    count: int,
    repetition: Repetition | None = None,
) -> list[PlannedJobs]:
    """The requests for `count` copies of each job; `parameters` make several of one description.

    `WrongUsage` if a file is missing.
    """
    repetition = repetition or Repetition(patience=0)
    return [
        request
        for batch in _batches(sources)
        for request in _read_plan(
            batch, repetition.wait_out(partial(_plan, service, batch, parameters, count))
        )
    ]


def count_descriptions(service: ServiceClient, source: JobSource) -> int:
    """The number of descriptions in a source."""
    return int(_plan(service, [source], {}, 1)["descriptions"])


def _batches(sources: Iterable[JobSource]) -> Iterator[list[JobSource]]:
    batch: list[JobSource] = []
    size = 0
    for source in sources:
        own = len(json.dumps(source.content, default=str))
        if batch and (len(batch) == _SOURCES or size + own > _BYTES):
            yield batch
            batch, size = [], 0
        batch.append(source)
        size += own
    if batch:
        yield batch


def _plan(service: ServiceClient, batch: Sequence[JobSource], parameters: Parameters, count: int) -> Json:
    """The plan of the service, or if it makes none our own."""
    places = {directory: place for place, directory in enumerate({each.directory: 0 for each in batch})}
    sources = [each.as_json(place=places[each.directory]) for each in batch]
    question = {"sources": sources, "parameters": {name: [*given] for name, given in parameters.items()}}
    try:
        return service.plan_submission({**question, "count": count})
    except ApiError as error:
        if error.status not in _NOT_PLANNED:
            raise
        from pilotage.client import own_plan  # a service of 1.0.0 makes no plans

        return own_plan.make_plan(sources, parameters, count, reason=error)


def _read_plan(batch: Sequence[JobSource], plan: Json) -> Iterator[PlannedJobs]:
    directories = list(dict.fromkeys(each.directory for each in batch))
    contents = [
        batch[piece["source"]].content if piece["source"] is not None else piece["job"]
        for piece in plan["pieces"]
    ]
    for request in plan["requests"]:
        directory = directories[request["place"]]
        executables, mentioned = (request.get(name, ()) for name in ("executables", "mentioned"))
        beside = [name for name in executables if _is_beside(name, directory)]
        files = _find_files([*request["files"], *beside], directory)
        sent = {file.name for file in files}
        missing = [name for name in executables if name not in beside and _is_missing(name)]
        left = [name for name in mentioned if _is_beside(name, directory) and Path(name).name not in sent]
        yield PlannedJobs(
            parts=[(contents[piece], copies) for piece, copies in request["parts"]],
            is_text=request["is_text"],
            files=files,
            vo=request["vo"] if files else None,
            jobs=request["jobs"],
            is_linked=plan.get("is_linked", False),
            warnings=(
                *plan.get("warnings", ()),
                *(_NOBODY_SENDS.format(name=name) for name in missing),
                *(_NOT_SENT.format(name=name) for name in left),
            ),
        )


_NOBODY_SENDS = (
    "Executable {name}: neither in InputSandbox nor beside the description; nodes need it in their PATH"
)
_NOT_SENT = "Arguments: {name} lies beside the description, but InputSandbox does not have it"


def is_file(path: Path) -> bool:
    """Whether there is a file; not, if there can be none of such a name."""
    with suppress(OSError, ValueError):  # what is too long, or not to be read, is none
        return path.is_file()
    return False


def _is_beside(name: str, directory: Path) -> bool:
    """Whether a name without directory is that of a file beside the description."""
    return Path(name) == Path(Path(name).name) and is_file(directory / name)


def _is_missing(name: str) -> bool:
    """Whether a program is neither stated with its directory nor one that this machine has, too."""
    return "%" not in name and Path(name) == Path(Path(name).name) and shutil.which(name) is None


def _find_files(names: Iterable[str], directory: Path) -> tuple[Path, ...]:
    stated = [directory / Path(name).expanduser() for name in names]
    missing = [str(file) for file in stated if not file.exists()]
    if missing:
        raise WrongUsage(f"InputSandbox: {', '.join(missing)}: no such file")
    files = tuple({(file.resolve(), file.name): file for file in stated}.values())
    first: dict[str, Path] = {}
    for file in files:
        if (other := first.setdefault(file.name, file)) is not file:
            raise WrongUsage(
                f"InputSandbox: {other} and {file} are two files called {file.name}; a job has one directory"
            )
    return files


def send_requests(
    service: ServiceClient,
    requests: Iterable[PlannedJobs],
    *,
    warn: Callable[[str], object],
    repetition: Repetition | None = None,
) -> Iterator[list[int]]:
    """Send the requests, and yield the ids of the jobs of each; those of linked jobs are one.

    What broke it off states the key by which the same jobs may be submitted again.
    """
    repetition = repetition or Repetition(patience=0)
    uploads = _Uploads(service, repetition)
    for number, some in enumerate(_group_linked(_warn_of_files(requests, warn))):
        submit = partial(
            service.submit,
            **uploads.make_body(some),
            idempotency_key=repetition.key_of(number),
            warn=warn,
        )
        try:
            yield repetition.wait_out(submit)
        except (ServiceAway, ApiError) as error:
            if is_passing(error):
                _name_key(error, repetition.key)
            raise
        except KeyboardInterrupt as error:  # nobody knows whether the request was stored
            error.add_note(_AGAIN.format(key=repetition.key))
            raise


def _warn_of_files(requests: Iterable[PlannedJobs], warn: Callable[[str], object]) -> Iterator[PlannedJobs]:
    """The same requests, with each warning of theirs once, before the first that has it."""
    warned: set[str] = set()
    for request in requests:
        for warning in dict.fromkeys(request.warnings):
            if warning not in warned:
                warn(warning)
        warned.update(request.warnings)
        yield request


def _group_linked(requests: Iterable[PlannedJobs]) -> Iterator[list[PlannedJobs]]:
    """What is sent together: each request alone, but all of linked jobs."""
    linked: list[PlannedJobs] = []
    for request in requests:
        if request.is_linked:
            linked.append(request)
        else:
            yield [request]
    if linked:
        yield linked


_TOO_MANY_LINKED = (
    "jobs that name each other in After are one request: {number}, allowed are 1,000 (one with Parameters "
    "makes many jobs); submit the first ones, then the next with ids of those in After"
)


class _Uploads:
    """Input sandboxes that were sent, each once."""

    def __init__(self, service: ServiceClient, repetition: Repetition) -> None:
        self._service = service
        self._repetition = repetition
        self._names: dict[tuple[tuple[Path, ...], str | None], str] = {}

    def make_body(self, requests: Sequence[PlannedJobs]) -> Json:
        """What is sent of one request, or of linked jobs, each of which names its input sandbox."""
        first = requests[0]
        if first.is_linked:
            if (number := sum(copies for each in requests for _, copies in each.parts)) > _SOURCES:
                raise WrongUsage(_TOO_MANY_LINKED.format(number=format_count(number, "description")))
            return {"jobs": [job for request in requests for job in self._name_in_jobs(request)]}
        contents = [content for content, copies in first.parts for _ in range(copies)]
        return {"jdls" if first.is_text else "jobs": contents, "sandbox": self._send(first)}

    def _send(self, request: PlannedJobs) -> str | None:
        """The name of the input sandbox of a request; None: it has none."""
        if not request.files:
            return None
        sandbox = request.files, request.vo
        if sandbox not in self._names:
            self._names[sandbox] = self._repetition.wait_out(partial(_upload, self._service, request))
        return self._names[sandbox]

    def _name_in_jobs(self, request: PlannedJobs) -> Iterator[Json]:
        """The descriptions of a request, each with its input sandbox."""
        name = self._send(request)
        for content, copies in request.parts:
            job: Json = dict(content)  # type: ignore[arg-type]  # linked jobs are objects
            names = [*job.get("InputSandbox", ()), *([] if name is None else [name])]
            yield from [{**job, "InputSandbox": names}] * copies


def _upload(service: ServiceClient, request: PlannedJobs) -> str:
    with pack_sandbox(request.files) as archive:
        return service.upload_sandbox(archive, vo=request.vo)


_AGAIN = "submit the same again with the idempotency key {key}: nothing is stored twice"


def _name_key(error: ServiceAway | ApiError, key: str) -> None:
    """State how the same jobs can be submitted again, whether they were stored or not."""
    error.args = (f"{error}; {_AGAIN.format(key=key)}",)
    error.details = {**error.details, "idempotency_key": key}


def collect_ids(
    batches: Iterable[list[int]], ids: list[int], *, progress: Callable[[int], object] = lambda _: None
) -> None:
    """Add the ids of new jobs as they come; if that breaks off, what broke it names them.

    `progress` gets the number of jobs so far.
    """
    try:
        for batch in batches:
            ids += batch
            progress(len(ids))
    except BaseException as error:  # also Ctrl-C, and a file of a later sandbox that is gone
        stored = f"{format_count(len(ids), 'job')} submitted before: {format_ids(ids)}"
        if ids and isinstance(error, PilotageError):
            error.args = (f"{error}; {stored}",)
            error.details = {**error.details, "job_ids": list(ids)}
        elif ids:
            error.add_note(stored)
        raise


#: Bytes of an archive in memory; a larger one goes to a temporary file.
_IN_MEMORY = 8 << 20


@contextmanager
def pack_sandbox(files: Iterable[Path]) -> Iterator[BinaryIO]:
    """A tar archive of `files` under their base names, read from its start.

    Equal files give equal bytes, so the service stores them once: owner and times are left out.
    Links are followed; sockets and devices stay behind.
    """
    with tempfile.SpooledTemporaryFile(max_size=_IN_MEMORY) as stream:
        with tarfile.open(fileobj=stream, mode="w", dereference=True) as archive:
            for file in sorted(files, key=lambda each: each.name):
                archive.add(file, arcname=file.name, filter=_anonymous)
        stream.seek(0)
        yield stream  # type: ignore[misc]  # SpooledTemporaryFile is a binary file in all but its declared type


def _anonymous(member: tarfile.TarInfo) -> tarfile.TarInfo | None:
    if not (member.isfile() or member.isdir()):
        return None
    member.uid = member.gid = 0
    member.uname = member.gname = ""
    member.mtime = 0
    member.mode = 0o755 if member.isdir() or member.mode & 0o100 else 0o644
    return member
