"""Job descriptions of local files, and the requests for `POST /jobs` that they become.

Imported late: the JDL parser and the keywords need more time than all else that a client command imports.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import product
from pathlib import Path

from cs_config.options import keywords
from optimizers.description import jdl, parametric
from pilotage.cli.errors import WrongUsage
from requirements.classad.classad_files import Unevaluated

#: Descriptions in one request; the service takes no more.
BATCH = 1000
#: Limit of members of one parametric description; the service has its own.
_MOST_MEMBERS = 1_000_000


#: Files of an input sandbox, and the VO that they are stored for; None: the VO of the token.
Sandbox = tuple[tuple[Path, ...], str | None]


@dataclass(frozen=True, slots=True, kw_only=True)
class JobDraft:
    """One description, not submitted yet."""

    text: str | None  #: the whole text of the file; None: the file has several descriptions
    content: Mapping[str, object]
    files: tuple[Path, ...]  #: of its input sandbox
    vo: str | None  #: named in the description
    jobs: int  #: number of its jobs: 1, or the members of a parametric job

    @property
    def sandbox(self) -> Sandbox:
        """Files and VO of the input sandbox."""
        return self.files, self.vo if self.files else None


@dataclass(frozen=True, slots=True, kw_only=True)
class SubmissionRequest:
    """Descriptions of one request, which share an input sandbox."""

    drafts: tuple[JobDraft, ...]

    @property
    def sandbox(self) -> Sandbox:
        """Files and VO of the input sandbox."""
        return self.drafts[0].sandbox

    @property
    def jobs(self) -> int:
        """Number of jobs of all descriptions."""
        return sum(draft.jobs for draft in self.drafts)


def read_drafts(text: str, *, file: str, directory: Path) -> list[JobDraft]:
    """The descriptions of one file.

    Args:
        text: JDL, ClassAd, YAML or JSON.
        file: Name for messages.
        directory: Base of relative names in `InputSandbox`.

    Raises:
        InvalidJob: The text is not valid; with line and column.
        WrongUsage: A file of an input sandbox does not exist.
    """
    contents = jdl.read_descriptions(text, file)
    alone = text if len(contents) == 1 else None
    return [
        JobDraft(
            text=alone,
            content=content,
            files=_sandbox_files(content, directory),
            vo=next((str(value) for value in _values_of("vo", content)), None),
            jobs=_count_members(content),
        )
        for content in contents
    ]


def add_parameters(draft: JobDraft, parameters: Mapping[str, Sequence[str]]) -> JobDraft:
    """`draft` as a parametric job with a member for each combination of the values.

    The values of a member replace `%(NAME)s`.
    """
    if not parameters:
        return draft
    if parametric.is_parametric(draft.content):
        raise WrongUsage("--param: the description has Parameters of its own")
    columns = zip(*product(*parameters.values()), strict=True)
    lists = {f"Parameters.{name}": list(column) for name, column in zip(parameters, columns, strict=True)}
    content = {**draft.content, **lists}
    return replace(draft, text=None, content=content, jobs=_count_members(content))


def parse_parameters(words: Sequence[str]) -> dict[str, list[str]]:
    """`NAME=V1,V2` words as names with their values.

    Raises:
        WrongUsage: A word is not NAME=V1,V2, or a name is given twice.
    """
    parsed: dict[str, list[str]] = {}
    for word in words:
        name, equals, values = word.partition("=")
        if not (name and equals and values):
            raise WrongUsage(f"--param {word}: is not NAME=V1,V2,…")
        if name in parsed:
            raise WrongUsage(f"--param {word}: {name} is given twice")
        parsed[name] = values.split(",")
    return parsed


def build_requests(drafts: Sequence[JobDraft], count: int) -> Iterator[SubmissionRequest]:
    """Each draft `count` times, in as few requests as the service allows."""
    waiting: list[JobDraft] = []
    for draft in (draft for draft in drafts for _ in range(count)):
        full = sum(each.jobs for each in waiting) + draft.jobs > BATCH
        if waiting and (full or waiting[0].sandbox != draft.sandbox):
            yield SubmissionRequest(drafts=tuple(waiting))
            waiting = []
        waiting.append(draft)
    if waiting:
        yield SubmissionRequest(drafts=tuple(waiting))


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


def _count_members(content: Mapping[str, object]) -> int:
    if not parametric.is_parametric(content):
        return 1
    return len(parametric.expand_parameters(content, most=_MOST_MEMBERS))


def _sandbox_files(content: Mapping[str, object], directory: Path) -> tuple[Path, ...]:
    files = tuple(directory / Path(name).expanduser() for name in _sandbox_names(content))
    missing = [str(file) for file in files if not file.exists()]
    if missing:
        raise WrongUsage(f"InputSandbox: {', '.join(missing)}: no such file")
    names = [file.name for file in files]
    if twice := sorted({name for name in names if names.count(name) > 1}):
        raise WrongUsage(
            f"InputSandbox: several files are called {', '.join(twice)}; a job has one directory"
        )
    return files


def _sandbox_names(content: Mapping[str, object]) -> Iterator[str]:
    """Names of local files; names with a scheme (`sha256:`, `LFN:`) are not local."""
    for value in _values_of("input_sandbox", content):
        for name in value if isinstance(value, list | tuple) else [value]:
            if isinstance(name, str) and name and ":" not in name:
                yield name


def _values_of(attribute: str, content: Mapping[str, object]) -> Iterator[object]:
    """The values of a keyword in any of its spellings."""
    for name, value in content.items():
        known = keywords.find_keyword(name)
        if known is not None and known.attribute == attribute:
            yield value
