"""From files on this machine to requests for `POST /jobs`."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import product
from pathlib import Path

from cs_config import keywords
from optimizers import jdl, parametric
from pilotage.cli.failures import WrongUsage
from requirements.classads import Unevaluated

#: Descriptions in one request; the service takes no more.
BATCH = 1000
#: Members of one parametric description that are counted here; the service has its own limit.
_MOST_MEMBERS = 1_000_000


#: Files of an input sandbox, and the VO that they are stored for; None: that of the token.
Sandbox = tuple[tuple[Path, ...], str | None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Draft:
    """One description, not submitted yet."""

    text: str | None  #: as it was written, if one text says it all
    content: Mapping[str, object]
    files: tuple[Path, ...]  #: of its input sandbox
    vo: str | None  #: the VO that it names
    jobs: int  #: how many jobs it stands for

    @property
    def sandbox(self) -> Sandbox:
        """Files, and the VO that they are stored for."""
        return self.files, self.vo if self.files else None


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """What goes out in one call: descriptions that share an input sandbox."""

    drafts: tuple[Draft, ...]

    @property
    def sandbox(self) -> Sandbox:
        """Files, and the VO that they are stored for."""
        return self.drafts[0].sandbox

    @property
    def jobs(self) -> int:
        """How many jobs it makes."""
        return sum(draft.jobs for draft in self.drafts)


def read(text: str, *, file: str, directory: Path) -> list[Draft]:
    """The descriptions of one file.

    Args:
        text: Its content: JDL, ClassAd, YAML or JSON.
        file: Its name, for messages.
        directory: What relative names in `InputSandbox` start from.

    Raises:
        InvalidJob: It cannot be read; with line and column.
        WrongUsage: A file of an input sandbox does not exist.
    """
    contents = jdl.read(text, file)
    alone = text if len(contents) == 1 else None
    return [
        Draft(
            text=alone,
            content=content,
            files=_sandbox_files(content, directory),
            vo=next((str(value) for value in _values_of("vo", content)), None),
            jobs=_count(content),
        )
        for content in contents
    ]


def vary(draft: Draft, parameters: Mapping[str, Sequence[str]]) -> Draft:
    """`draft` as a parametric job with a member for each combination of the values.

    A member puts its values for `%(NAME)s`.
    """
    if not parameters:
        return draft
    if parametric.is_parametric(draft.content):
        raise WrongUsage("--param: the description has Parameters of its own")
    columns = zip(*product(*parameters.values()), strict=True)
    lists = {f"Parameters.{name}": list(column) for name, column in zip(parameters, columns, strict=True)}
    content = {**draft.content, **lists}
    return replace(draft, text=None, content=content, jobs=_count(content))


def parse_parameters(words: Sequence[str]) -> dict[str, list[str]]:
    """`NAME=V1,V2` words as names with their values.

    Raises:
        WrongUsage: A word that is none, or a name twice.
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


def requests(drafts: Sequence[Draft], count: int) -> Iterator[Request]:
    """Each draft `count` times, in as few requests as the service allows."""
    waiting: list[Draft] = []
    for draft in (draft for draft in drafts for _ in range(count)):
        full = sum(each.jobs for each in waiting) + draft.jobs > BATCH
        if waiting and (full or waiting[0].sandbox != draft.sandbox):
            yield Request(drafts=tuple(waiting))
            waiting = []
        waiting.append(draft)
    if waiting:
        yield Request(drafts=tuple(waiting))


def as_json(content: Mapping[str, object]) -> dict[str, object]:
    """A description as JSON: expressions become their text."""
    return {name: _plain(value) for name, value in content.items()}


def _plain(value: object) -> object:
    if isinstance(value, Unevaluated):
        return value.text
    if isinstance(value, Mapping):
        return as_json(value)
    if isinstance(value, list | tuple):
        return [_plain(each) for each in value]
    return value


def _count(content: Mapping[str, object]) -> int:
    if not parametric.is_parametric(content):
        return 1
    return len(parametric.expand(content, most=_MOST_MEMBERS))


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
    """Names of local files; what has a scheme (`sha256:`, `LFN:`) is somewhere else already."""
    for value in _values_of("input_sandbox", content):
        for name in value if isinstance(value, list | tuple) else [value]:
            if isinstance(name, str) and name and ":" not in name:
                yield name


def _values_of(attribute: str, content: Mapping[str, object]) -> Iterator[object]:
    """What stands under a keyword, in whatever spelling."""
    for name, value in content.items():
        known = keywords.find(name)
        if known is not None and known.attribute == attribute:
            yield value
