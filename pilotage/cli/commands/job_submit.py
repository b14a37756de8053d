"""`pilotage job submit`: descriptions in files, their input sandboxes, and the requests for them."""

import json
import re
import sys
import tarfile
import tempfile
import uuid
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from itertools import product
from pathlib import Path
from typing import Annotated, BinaryIO

import typer
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from cs_config.options import bounds, keywords
from cs_config.options.keywords import UnfitValueError
from optimizers.description import jdl, parametric
from optimizers.description.parametric import SplitDescription
from pilotage.cli import options, output
from pilotage.cli.connection import ServiceOptions
from pilotage.cli.errors import WrongUsage, harmless
from pilotage.fabric.client import ServiceClient
from requirements.classad.classad_files import Unevaluated
from requirements.errors import format_count, format_ids
from taskqueue.jobs import placeholders

#: Descriptions in one request; the service takes no more.
BATCH = 1000
#: Jobs of one parametric description in one request; a longer one is sent in pieces.
_MEMBERS = 5_000
#: Bytes in a request beside each description: more than the names in it and the signs between two.
_ENVELOPE = 300
#: Signs between values that the service finds in a text at most: it leaves out long ones.
_BETWEEN = 110
#: Limit of members of one parametric description; the service has its own.
_MOST_MEMBERS = 1_000_000


#: Files of an input sandbox, and the VO that they are stored for; None: the VO of the token.
Sandbox = tuple[tuple[Path, ...], str | None]


@dataclass(frozen=True, slots=True, kw_only=True)
class JobDraft:
    """One description, not submitted yet."""

    text: str | None  #: the whole text of the file; None: the file has several descriptions
    content: Mapping[str, object]
    split: SplitDescription  #: the same, as template and parameters
    files: tuple[Path, ...]  #: of its input sandbox
    vo: str | None  #: named in the description
    jobs: int  #: number of its jobs: 1, or the members of a parametric job

    @property
    def sandbox(self) -> Sandbox:
        """Files and VO of the input sandbox."""
        return self.files, self.vo if self.files else None


def read_drafts(text: str, *, file: str, directory: Path) -> list[JobDraft]:
    """The descriptions of one file: JDL, ClassAd, CFG, YAML or JSON.

    Relative names in `InputSandbox` start at `directory`; messages name `file`.
    """
    contents = jdl.read_descriptions(text, file)
    alone = text if len(contents) == 1 else None
    return [make_draft(content, directory=directory, text=alone) for content in contents]


def make_draft(content: Mapping[str, object], *, directory: Path, text: str | None = None) -> JobDraft:
    """The draft of one description; `text`: the file that has nothing else."""
    split = parametric.split_description(content)
    return JobDraft(
        text=text,
        content=content,
        split=split,
        files=_sandbox_files(split, directory),
        vo=next((str(value) for value in _values_of("vo", content)), None),
        jobs=_count_members(split),
    )


def add_parameters(draft: JobDraft, parameters: Mapping[str, Sequence[str]]) -> JobDraft:
    """`draft` as a parametric job with a member for each combination of the values.

    The values of a member replace `%(NAME)s`.
    """
    if not parameters:
        return draft
    if draft.split.parameters:
        raise WrongUsage("--param: the description has Parameters of its own")
    columns = zip(*product(*parameters.values()), strict=True)
    lists = {f"Parameters.{name}": list(column) for name, column in zip(parameters, columns, strict=True)}
    content = {**draft.content, **lists}
    split = parametric.split_description(content)
    return replace(draft, text=None, content=content, split=split, jobs=_count_members(split))


def parse_parameters(words: Sequence[str]) -> dict[str, list[str]]:
    """`NAME=V1,V2` words as names with their values."""
    parsed: dict[str, list[str]] = {}
    for word in words:
        name, equals, values = word.partition("=")
        if not (name and equals and values):
            raise WrongUsage(f"--param {word}: is not NAME=V1,V2,…")
        if name in parsed:
            raise WrongUsage(f"--param {word}: {name} is given twice")
        parsed[name] = values.split(",")
    return parsed


def build_requests(drafts: Sequence[JobDraft], count: int) -> Iterator[list[JobDraft]]:
    """Each draft `count` times, in as few requests as the service allows; one request has one sandbox."""
    waiting: list[JobDraft] = []
    work = own = _Work()
    pieces = ([*_split_members(draft)] for draft in drafts)
    for draft in (piece for some in pieces for _ in range(count) for piece in some):
        is_again = bool(waiting) and draft is waiting[-1]
        own = own if is_again else _Work.from_draft(draft)
        work += own.repetition if is_again else own
        full = sum(each.jobs for each in waiting) + draft.jobs > BATCH or work.is_too_much
        if waiting and (full or waiting[0].sandbox != draft.sandbox):
            yield waiting
            waiting, work = [], own.copy()
        waiting.append(draft)
    if waiting:
        yield waiting


class _Work(Counter[str]):
    """Amounts that the service limits in a request, by name of the limit; equal descriptions count once."""

    @classmethod
    def from_draft(cls, draft: JobDraft) -> "_Work":
        """The work for a description."""
        volume = draft.split.volume
        source = description_as_json(draft.content) if draft.text is None else draft.text
        return cls(
            BODY=len(text := json.dumps(source, default=str)) + _ENVELOPE,
            JSON_VALUES=_BETWEEN if draft.text is not None else sum(map(text.count, ",:[{")) + 1,
            RECORD_VALUES=parametric.count_values(draft.content),
            DESCRIBED_TOKENS=jdl.count_tokens(draft.text or ""),
            EXPRESSION_TOKENS=volume.expression_tokens,
            FILLED_VALUES=volume.values,
        )

    @property
    def repetition(self) -> "_Work":
        """The work for one more copy of a description, which is only read again."""
        return type(self)({name: self[name] for name in ("BODY", "JSON_VALUES")})

    @property
    def is_too_much(self) -> bool:
        """Whether the service would refuse it."""
        return any(amount > getattr(bounds, name) for name, amount in self.items())


def _split_members(draft: JobDraft) -> Iterator[JobDraft]:
    """Split a long parametric description; each member keeps its values and its number."""
    work = _Work.from_draft(draft)
    del work["DESCRIBED_TOKENS"]  # the text is read once
    fits = (getattr(bounds, name) * draft.jobs // max(1, amount) for name, amount in work.items())
    most = max(1, min(_MEMBERS, *fits))
    if draft.jobs <= most:
        yield draft
        return
    members = parametric.expand_parameters(draft.split, most=_MOST_MEMBERS)
    for start in range(0, len(members), most):
        some = members[start : start + most]
        lists = {f"Parameters.{name}": [values[name] for values in some] for name in some[0]}
        if "s" in some[0]:
            lists["Parameters"] = lists.pop("Parameters.s")
        content = {**draft.split.template, **lists}
        split = parametric.split_description(content)
        # Again, since the values of some members may be longer than those of others.
        yield from _split_members(replace(draft, text=None, content=content, split=split, jobs=len(some)))


def description_as_json(content: Mapping[str, object]) -> dict[str, object]:
    """A description as JSON: expressions become their text."""
    return {name: _plain(value) for name, value in content.items()}


def _plain(value: object) -> object:
    if isinstance(value, Unevaluated):
        return value.text
    if isinstance(value, Mapping):
        return description_as_json(value)
    if isinstance(value, list | tuple):
        return [_plain(each) for each in value]
    return value


def _count_members(split: SplitDescription) -> int:
    return len(parametric.expand_parameters(split, most=_MOST_MEMBERS)) if split.parameters else 1


def _sandbox_files(split: SplitDescription, directory: Path) -> tuple[Path, ...]:
    stated = [directory / Path(name).expanduser() for name in _sandbox_names(split)]
    missing = [str(file) for file in stated if not file.exists()]
    if missing:
        raise WrongUsage(f"InputSandbox: {', '.join(missing)}: no such file")
    files = tuple({(file.parent.resolve(), file.name): file for file in stated}.values())
    names = Counter(file.name for file in files)
    if twice := sorted(name for name, number in names.items() if number > 1):
        raise WrongUsage(
            f"InputSandbox: several files are called {', '.join(twice)}; a job has one directory"
        )
    return files


#: Names of files that the service or the grid has.
_ELSEWHERE = re.compile(r"(?:lfn|sb|sha256):|[a-z][a-z0-9+.-]*://", re.IGNORECASE)


def _sandbox_names(split: SplitDescription) -> list[str]:
    """Names of the local files of all members, each once."""
    found: dict[str, None] = {}
    for value in _values_of("input_sandbox", split.template):
        for stated in _fill_for_members(value, split):
            with suppress(UnfitValueError):  # which the service reports
                found.update(dict.fromkeys(keywords.texts(stated)))
    return [name for name in found if not _ELSEWHERE.match(name)]


def _fill_for_members(value: object, split: SplitDescription) -> Iterator[object]:
    """A value with the placeholders of each member of a parametric job filled."""
    if not (split.parameters and placeholders.find_places(value).characters):
        yield value
        return
    for values in parametric.expand_parameters(split, most=_MOST_MEMBERS):
        yield placeholders.fill_value(value, values)


def _values_of(attribute: str, content: Mapping[str, object]) -> Iterator[object]:
    """The values of a keyword in any of its spellings."""
    for name, value in content.items():
        known = keywords.find_keyword(name)
        if known is not None and known.attribute == attribute:
            yield value


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
        list[str], options.argument("FILE", "JDL, ClassAd, CFG, YAML or JSON; - is standard input.")
    ],
    *,
    count: Annotated[
        int, typer.Option("--count", "-n", metavar="N", min=1, max=1_000_000, help="Copies of each job.")
    ] = 1,
    param: Annotated[
        list[str] | None,
        options.option(
            "NAME=V1,V2…", "One job for each value, which replaces %(NAME)s; repeated: for each combination."
        ),
    ] = None,
    service: ServiceOptions,
) -> None:
    """Submit jobs with their input sandboxes, and print the job ids."""
    parameters = parse_parameters(param or [])
    drafts = [add_parameters(draft, parameters) for file in files for draft in _read(file)]
    with service.connect() as client:
        ids = _send_visibly(client, list(build_requests(drafts, count)))
    if service.as_json or not sys.stdout.isatty() or len(ids) <= _FEW:
        service.emit({"job_ids": ids}, lambda: "\n".join(map(str, ids)))
    else:
        output.console().print(f"{format_count(len(ids), 'job')}: {format_ids(ids)}")


def resubmit(ids: options.JobIds = None, *, service: ServiceOptions) -> None:
    """Submit copies of jobs, with their input sandboxes, and print the ids of the new jobs."""
    wanted = options.parse_ids(ids)
    if not wanted:
        raise WrongUsage("give at least one job id")
    new: list[int] = []
    with service.connect() as client, _report_if_broken(new):
        for copies in client.resubmit_all(wanted, warn=_warn):
            new += copies
    service.emit({"job_ids": new}, lambda: "\n".join(map(str, new)))


def _read(file: str) -> list[JobDraft]:
    if file == "-":
        return read_drafts(sys.stdin.read(), file="standard input", directory=Path())
    path = Path(file)
    text = path.read_text(encoding="utf-8", errors="surrogateescape")
    return read_drafts(text, file=file, directory=path.parent)


def send(
    client: ServiceClient, requests: Iterable[list[JobDraft]], *, warn: Callable[[str], object]
) -> Iterator[list[int]]:
    """Send the requests, and yield the ids of the jobs of each."""
    digests: dict[Sandbox, str | None] = {((), None): None}
    for drafts in requests:
        sandbox = drafts[0].sandbox
        if sandbox not in digests:
            digests[sandbox] = _upload(client, sandbox)
        yield _post(client, drafts, digests[sandbox], warn=warn)


def _send_visibly(client: ServiceClient, requests: Sequence[list[JobDraft]]) -> list[int]:
    """Send all requests, with a progress bar on a terminal; the ids of all jobs."""
    ids: list[int] = []
    columns = (TextColumn("Submitting"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    console = output.progress_console()
    progress = Progress(*columns, console=console, transient=True, disable=not console.is_terminal)
    with _report_if_broken(ids), progress as bar:
        task = bar.add_task("jobs", total=sum(draft.jobs for drafts in requests for draft in drafts))
        for some in send(client, requests, warn=_warn):
            ids += some
            bar.update(task, completed=len(ids))
    return ids


@contextmanager
def _report_if_broken(ids: Sequence[int]) -> Iterator[None]:
    """Print the ids of the jobs that are submitted already, if an error or Ctrl-C keeps back the others."""
    try:
        yield
    except BaseException:
        if ids:
            typer.echo(f"pilotage: {name_submitted(ids)}", err=True)
        raise


def name_submitted(ids: Sequence[int]) -> str:
    """The jobs that were submitted before something went wrong."""
    return f"{format_count(len(ids), 'job')} submitted before: {format_ids(ids)}"


def _upload(client: ServiceClient, wanted: Sandbox) -> str:
    files, vo = wanted
    with pack_sandbox(files) as archive:
        return client.upload_sandbox(archive, vo=vo)


def _post(
    client: ServiceClient, drafts: list[JobDraft], digest: str | None, *, warn: Callable[[str], object]
) -> list[int]:
    key = str(uuid.uuid4())
    texts = [draft.text for draft in drafts if draft.text is not None]
    if len(texts) == len(drafts):
        return client.submit(jdls=texts, sandbox=digest, idempotency_key=key, warn=warn)
    contents = [description_as_json(draft.content) for draft in drafts]
    return client.submit(jobs=contents, sandbox=digest, idempotency_key=key, warn=warn)


def _warn(warning: str) -> None:
    typer.echo(f"pilotage: warning: {harmless(warning)}", err=True)
