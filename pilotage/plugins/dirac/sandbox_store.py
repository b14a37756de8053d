"""WorkloadManagement/SandboxStore: sandboxes of jobs, for installations without DIRAC's own store.

Clients use it only if ResourceStatus/ResourceStatus has it as active (`resource_status`).

A client uploads an input sandbox before it submits the job that names its URL, a JobWrapper an output sandbox
for its job. Both are archives of ours, with their quotas and retention. A URL has the digest of the archive
and its owner, `SB:SandboxSE|/SandBox/<vo>/<owner>/<group>/<digest>.tar.bz2`: who controls jobs of this owner
may fetch it, an output only who controls a job that has it, since the owner in a URL is what a peer wrote.
Other URLs are of DIRAC's own store, and stay in the description as they are.

Source: DIRAC 9.1, `SandboxStoreHandler.py`, `SandboxStoreClient.py`.
"""

import hashlib
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Final
from urllib.parse import quote, unquote

from fastapi import Response
from pydantic import Field

from cs_config.options import bounds
from cs_config.options.operations import options_for
from pilotage.plugins.dirac import dialect, jencode, peers
from pilotage.plugins.dirac import job_state_update as reports
from pilotage.plugins.dirac.jencode import Result
from pilotage.plugins.dirac.peers import DiracCall, Method, Peer
from pilotage.service.models.jobs import MAX_ID
from pilotage.service.queries import archives
from requirements.errors import InvalidRequest, NotAllowed, Problem
from requirements.values import fold
from taskqueue import blobs
from taskqueue.blob_stores.store import StagedBlob
from taskqueue.db import database
from taskqueue.errors import BlobNotFound
from taskqueue.jobs import descriptions
from taskqueue.jobs.jobs import Job
from taskqueue.leases import attempts
from taskqueue.leases.reports import OutputReport, Sender

#: DIRAC's default name of the storage element.
ELEMENT: Final = "SandboxSE"
_PATH: Final = re.compile(
    r"/SandBox/(?P<vo>[^/|,\s]+)/(?P<owner>[^/|,\s]+)/(?P<group>[^/|,\s]+)/(?P<digest>[0-9a-f]{64})\.tar[.\w]*"
)
_ENTITY: Final = re.compile(r"Job:([1-9]\d{0,18})")
_NAME: Final = re.compile(r"(?P<digest>[0-9a-fA-F]{32})?.*\.tar[.\w]*", re.DOTALL)
_INPUT, _OUTPUT = "Input", "Output"
_KEYWORD: Final = "InputSandbox"
_BAD_REQUEST: Final = 400

#: URL of a sandbox, with the names of its VO, owner and group.
Url = Annotated[str, Field(max_length=10 * bounds.NAME)]
#: Name of a file with the MD5 of its content, and the kinds of sandbox that it is, by job (`Job:5`).
_FileName = Annotated[str, Field(max_length=bounds.NAME)]
FileId = tuple[_FileName, dict[str, str]] | tuple[_FileName] | _FileName


@dataclass(frozen=True, slots=True, kw_only=True)
class SandboxPath:
    """The path in a URL of a sandbox."""

    vo: str
    owner: str
    group: str
    digest: str  #: SHA-256 of the archive

    @classmethod
    def parse(cls, text: str) -> "SandboxPath | None":
        """The first path in a text, such as a URL; None: there is none of ours."""
        found = _PATH.search(text)
        return cls.from_match(found) if found else None

    @classmethod
    def from_match(cls, found: re.Match[str]) -> "SandboxPath":
        """The path that was found in a text."""
        return cls(**{name: unquote(each) for name, each in found.groupdict().items()})

    def is_readable(self, peer: Peer) -> bool:
        """Whether the peer may fetch it."""
        return peer.controls_jobs(vo=fold(self.vo), owner=self.owner, group=self.group)

    def __str__(self) -> str:
        owner = "/".join(quote(each, safe="") for each in (self.vo, self.owner, self.group))
        return f"SB:{ELEMENT}|/SandBox/{owner}/{self.digest}.tar.bz2"


def find_sandbox(description: Mapping[str, object], peer: Peer) -> str | None:
    """The archive of ours that a description names, as submissions name it; None: it names none.

    `InvalidRequest` if it names several, since a client packs all files of a job into one, or one that the
    peer, and so its job, may not fetch.
    """
    foreign = description.get(dialect.FOREIGN)
    text = str(foreign.get(_KEYWORD, "")) if isinstance(foreign, Mapping) else ""
    named = {SandboxPath.from_match(found) for found in _PATH.finditer(text)}
    digests = {each.digest for each in named}
    if len(digests) > 1:
        message = f"names {len(digests)} sandboxes of this store, allowed is 1: put all files into one"
        raise InvalidRequest([Problem(path=_KEYWORD, message=message)])
    for each in sorted(named, key=str):
        if not each.is_readable(peer):
            message = f"{peer.user} with the group {peer.group} may not read the sandbox {str(each)[:300]!r}"
            raise InvalidRequest([Problem(path=_KEYWORD, message=message)])
    return f"sha256:{digests.pop()}" if digests else None


def add_sandbox(description: Mapping[str, object], sandbox: str | None, job: Job) -> Mapping[str, object]:
    """A description whose archive, if it has one that came another way, is named as DIRAC names it."""
    foreign = description.get(dialect.FOREIGN)
    known = dict(foreign) if isinstance(foreign, Mapping) else {}
    if sandbox is None or sandbox in str(known.get(_KEYWORD, "")):
        return description
    return {**description, dialect.FOREIGN: {**known, _KEYWORD: f"{{{_url(job, sandbox)}}}"}}


def _url(job: Job, digest: str) -> str:
    return str(SandboxPath(vo=job.vo, owner=job.owner, group=job.owner_group, digest=digest))


def stream_from_client(call: DiracCall, file_id: FileId, token: str, size: int, data: bytes) -> Result:  # noqa: ARG001
    """Store a sandbox: the output of a job, or an input for jobs to come; its URL."""
    name, assigned = _read_file_id(file_id)
    if (found := _NAME.fullmatch(name)) is None:
        return jencode.error(f"{name[:80]!r} is not a valid name such as <md5>.tar.bz2")
    if len(data) > bounds.DIRAC_SANDBOX:
        return jencode.error(
            f"the sandbox has {len(data):,} bytes, allowed are {bounds.DIRAC_SANDBOX:,}:"
            " put large files on a storage element of the grid"
        )
    if not data:
        return jencode.error("the sandbox is empty")
    if found["digest"] and hashlib.md5(data, usedforsecurity=False).hexdigest() != found["digest"].lower():
        return jencode.error("the sandbox did not arrive as it was sent: its MD5 is another")
    jobs = {_read_entity(entity): kind for entity, kind in assigned.items()}
    if not jobs:
        return jencode.ok(_store_input(call, data))
    if len(jobs) > 1 or set(jobs.values()) != {_OUTPUT}:
        return jencode.error("a sandbox is the input of jobs that are submitted later, or the output of one")
    [job_id] = jobs
    return jencode.ok(_store_output(call, job_id, data))


def _read_file_id(given: FileId) -> tuple[str, Mapping[str, str]]:
    if isinstance(given, str):
        return given, {}
    return (given[0], given[1]) if len(given) == 2 else (given[0], {})


def _read_entity(text: str) -> int:
    found = _ENTITY.fullmatch(text)
    if found is None or int(found[1]) > MAX_ID:
        raise InvalidRequest([Problem(path="entity", message=f"{text[:80]!r} is not a job such as Job:5")])
    return int(found[1])


def _stage(call: DiracCall, data: bytes, *, leave: float = 1.0) -> StagedBlob:
    return call.parts.blobs.stage([data], limit=bounds.DIRAC_SANDBOX, leave=leave)


def _store_input(call: DiracCall, data: bytes) -> str:
    peer, parts = call.peer, call.parts
    if peer.is_host or not peer.has(peers.NORMAL_USER):
        raise NotAllowed(f"{peer.user} with the group {peer.group} may not submit, and so not send sandboxes")
    limits = options_for(parts.live.current, peer.vo).limits
    if len(data) > limits.sandbox_bytes:
        message = f"has {len(data):,} bytes, allowed are {limits.sandbox_bytes:,}"
        raise InvalidRequest([Problem(path="sandbox", message=message)])
    staged = _stage(call, data)
    archives.store_input(parts, staged, peer.vo, limits.sandbox_quota)
    return str(SandboxPath(vo=peer.vo, owner=peer.user, group=peer.group, digest=staged.digest))


def _store_output(call: DiracCall, job_id: int, data: bytes) -> str:
    """Store the output of the attempt that the peer has.

    A JobWrapper whose payload the Watchdog ended reports the end before it sends the output: that is taken.
    That of a ghost, and further ones, are dropped: JobWrappers send elsewhere what is refused.
    """
    parts = call.parts
    standing = reports.find_standing(call, job_id)
    url = _url(standing.job, hashlib.sha256(data).hexdigest())
    is_late = standing.lacks_output
    if standing.attempt is None or standing.is_ghost or (standing.is_over and not is_late):
        return url
    staged = _stage(call, data, leave=blobs.OUTPUTS_LEAVE)
    report = OutputReport(
        lease=standing.attempt.lease, sender=Sender(subject=None), digest=staged.digest, may_be_late=is_late
    )
    archives.store_output(parts, report, staged)
    return url


def stream_to_client(call: DiracCall, url: Url, token: str = "") -> Response:  # noqa: ARG001
    """The archive itself. Clients write what comes with status 200 to the file, so a refusal has another."""
    path, parts = SandboxPath.parse(url), call.parts
    if path is None or not path.is_readable(call.peer) or not _may_fetch(call, path):
        return Response(f"the sandbox {url[:300]!r} does not exist", _BAD_REQUEST)
    try:
        return archives.answer(parts, path.digest, vo=fold(path.vo), name=f"{path.digest}.tar")
    except BlobNotFound:
        return Response(f"the sandbox {url[:300]!r} is not stored any more", _BAD_REQUEST)


def _may_fetch(call: DiracCall, path: SandboxPath) -> bool:
    """Whether the peer may fetch an archive, whatever owner it wrote into the URL: an output is its job's."""
    vo = fold(path.vo)
    with database.reading(call.parts.engine) as conn:
        owners = blobs.find_owners(conn, path.digest, vo=vo)
    return owners is None or any(
        call.peer.controls_jobs(vo=vo, owner=owner, group=group) for owner, group in owners
    )


def get_sandboxes(call: DiracCall, entity: str) -> Result:
    """The URLs of the sandboxes of a job, by kind."""
    job_id = _read_entity(entity)
    with database.reading(call.parts.engine) as conn:
        job = call.get_job(conn, job_id)
        latest = attempts.get_latest(conn, job_id)
        stored = {
            _INPUT: descriptions.read_description(conn, job_id).sandbox,
            _OUTPUT: latest.output if latest else None,
        }
    return jencode.ok({kind: [_url(job, digest)] for kind, digest in stored.items() if digest})


METHODS: Final[Mapping[str, Method]] = {
    "streamFromClient": stream_from_client,
    "streamToClient": stream_to_client,
    "getSandboxesAssignedToEntity": get_sandboxes,
}
