"""`pilotage job submit`."""

import sys
import uuid
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Annotated

import typer
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from pilotage.cli import job_ids, options, output, sandbox, submission
from pilotage.cli.connection import connect
from pilotage.cli.submission import Draft, Request, Sandbox
from pilotage.fabric.client import Client

#: Above this many ids a terminal gets ranges.
_FEW = 20


def submit(
    files: Annotated[
        list[str], typer.Argument(metavar="FILE", help="JDL, ClassAd, YAML or JSON; - is standard input.")
    ],
    *,
    count: Annotated[
        int, typer.Option("--count", "-n", min=1, max=1_000_000, help="Submit each description so often.")
    ] = 1,
    param: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME=V1,V2…",
            help="A job for each value, put for %(NAME)s; with several: each combination.",
        ),
    ] = None,
    as_json: options.AsJson = False,
    home: options.Home = None,
    url: options.Url = None,
) -> None:
    """Submit jobs; their input sandbox goes along. Prints the job ids."""
    drafts = _drafts(files, submission.parse_parameters(param or []))
    with connect(home=home, url=url) as client:
        ids = _send(client, list(submission.requests(drafts, count)))
    if as_json or not sys.stdout.isatty() or len(ids) <= _FEW:
        output.emit({"job_ids": ids}, as_json=as_json, render=lambda: "\n".join(map(str, ids)))
    else:
        output.console().print(f"{len(ids)} jobs: {job_ids.shown(ids)}")


def _drafts(files: Sequence[str], parameters: dict[str, list[str]]) -> list[Draft]:
    return [submission.vary(draft, parameters) for file in files for draft in _read(file)]


def _read(file: str) -> Iterator[Draft]:
    if file == "-":
        yield from submission.read(sys.stdin.read(), file="standard input", directory=Path())
    else:
        path = Path(file)
        text = path.read_text(encoding="utf-8", errors="surrogateescape")
        yield from submission.read(text, file=file, directory=path.parent)


def _send(client: Client, requests: Sequence[Request]) -> list[int]:
    """Send everything; a bar shows how far we are if it takes more than one request."""
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


def _upload(client: Client, wanted: Sandbox) -> str:
    files, vo = wanted
    with sandbox.packed(files) as archive:
        return client.upload_sandbox(archive, vo=vo)


def _post(client: Client, request: Request, digest: str | None) -> list[int]:
    key = str(uuid.uuid4())
    texts = [draft.text for draft in request.drafts if draft.text is not None]
    if len(texts) == len(request.drafts):
        return client.submit(jdls=texts, sandbox=digest, idempotency_key=key)
    contents = [submission.as_json(draft.content) for draft in request.drafts]
    return client.submit(jobs=contents, sandbox=digest, idempotency_key=key)
