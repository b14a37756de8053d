"""`pilotage job submit`: submit the jobs of files, each with its input sandbox."""

import sys
import tarfile
import tempfile
import uuid
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, BinaryIO

import typer
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from pilotage.cli import options, output
from pilotage.cli.connection import ServiceOptions
from pilotage.fabric.client import Client

if TYPE_CHECKING:
    from pilotage.cli.commands.job_drafts import JobDraft, Sandbox, SubmissionRequest

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


#: More ids than this are printed as ranges on a terminal.
_FEW = 20


def submit(
    files: Annotated[
        list[str], typer.Argument(metavar="FILE", help="JDL, ClassAd, YAML or JSON; - is standard input.")
    ],
    *,
    count: Annotated[
        int, typer.Option("--count", "-n", min=1, max=1_000_000, help="Copies of each job.")
    ] = 1,
    param: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME=V1,V2…",
            help="One job for each value, which replaces %(NAME)s; repeated: for each combination.",
        ),
    ] = None,
    service: ServiceOptions,
) -> None:
    """Submit jobs with their input sandboxes, and print the job ids."""
    from pilotage.cli.commands import job_drafts

    parameters = job_drafts.parse_parameters(param or [])
    drafts = [job_drafts.add_parameters(draft, parameters) for file in files for draft in _read(file)]
    with service.connect() as client:
        ids = _send(client, list(job_drafts.build_requests(drafts, count)))
    if service.as_json or not sys.stdout.isatty() or len(ids) <= _FEW:
        service.emit({"job_ids": ids}, lambda: "\n".join(map(str, ids)))
    else:
        output.console().print(f"{len(ids)} jobs: {options.format_ids(ids)}")


def _read(file: str) -> "list[JobDraft]":
    from pilotage.cli.commands import job_drafts

    if file == "-":
        return job_drafts.read_drafts(sys.stdin.read(), file="standard input", directory=Path())
    path = Path(file)
    text = path.read_text(encoding="utf-8", errors="surrogateescape")
    return job_drafts.read_drafts(text, file=file, directory=path.parent)


def _send(client: Client, requests: "Sequence[SubmissionRequest]") -> list[int]:
    """Send all requests, with a progress bar on a terminal."""
    ids: list[int] = []
    digests: dict[Sandbox, str | None] = {((), None): None}
    columns = (TextColumn("Submitting"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    console = output.progress_console()
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as bar:
        task = bar.add_task("jobs", total=sum(request.jobs for request in requests))
        for request in requests:
            if request.sandbox not in digests:
                digests[request.sandbox] = _upload(client, request.sandbox)
            ids += _post(client, request, digests[request.sandbox])
            bar.update(task, completed=len(ids))
    return ids


def _upload(client: Client, wanted: "Sandbox") -> str:
    files, vo = wanted
    with pack_sandbox(files) as archive:
        return client.upload_sandbox(archive, vo=vo)


def _post(client: Client, request: "SubmissionRequest", digest: str | None) -> list[int]:
    key = str(uuid.uuid4())
    texts = [draft.text for draft in request.drafts if draft.text is not None]
    if len(texts) == len(request.drafts):
        return client.submit(jdls=texts, sandbox=digest, idempotency_key=key)
    from pilotage.cli.commands import job_drafts

    contents = [job_drafts.description_as_json(draft.content) for draft in request.drafts]
    return client.submit(jobs=contents, sandbox=digest, idempotency_key=key)
