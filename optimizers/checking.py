"""Reading and checking a whole submission, as far as no database is needed."""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from cs_config.configuration import Configuration
from optimizers import jdl, members, moulds
from optimizers.members import Submitted
from optimizers.moulds import Casting, Mould
from optimizers.submitter import Submitter
from requirements.classads import Unevaluated
from requirements.errors import InvalidInput, InvalidJob, NotAllowed
from requirements.problem import Problem

#: One description: its text, or what a JSON body says.
Source = str | Mapping[str, object]


@dataclass(frozen=True, slots=True, kw_only=True)
class Checked:
    """Jobs that share a description, ready to be stored."""

    source: str  #: the text that it came in
    path: str  #: where in the submission it stands, for messages
    submitted: Submitted
    mould: Mould | None = None  #: with whose body its one member has placeholders; None: with its own


def check(
    config: Configuration, submitter: Submitter, sources: Sequence[Source], *, sandbox: str | None = None
) -> list[Checked]:
    """Read and check everything that needs no database.

    Raises:
        InvalidJob: With the problems of every description, each with its index.
        NotAllowed: One is for somebody else.
    """
    checked: list[Checked] = []
    problems: list[Problem] = []
    casting = Casting(moulds.of_configuration(config), submitter, sandbox) if len(sources) > 1 else None
    alike: dict[str, list[Checked]] = {}
    for index, source in enumerate(sources):
        text = source if isinstance(source, str) else as_text(source)
        prefix = f"jobs[{index}]/" if len(sources) > 1 else ""
        try:
            if text not in alike:
                cast = _cast(casting, text, prefix) if casting else None
                alike[text] = cast or list(_check_one(config, submitter, source, prefix, sandbox))
            checked += alike[text]
        except NotAllowed as refused:
            raise NotAllowed(f"{prefix}{refused}") from None
        except InvalidInput as invalid:
            problems += (replace(each, path=f"{prefix}{each.path}") for each in invalid.problems)
    if problems:
        raise InvalidJob(problems)
    if not checked:
        raise InvalidJob([Problem(path="jobs", message="is empty: there is nothing to submit")])
    return checked


def _cast(casting: Casting, text: str, path: str) -> list[Checked] | None:
    """The same as `_check_one` for a text like others; None: it has to be read as a whole."""
    if (found := casting.cast(text)) is None:
        return None
    mould, member = found
    submitted = replace(mould.submitted, members=(member,))
    return [Checked(source=text, path=path, submitted=submitted, mould=mould)]


def _check_one(
    config: Configuration, submitter: Submitter, source: Source, path: str, sandbox: str | None
) -> Iterator[Checked]:
    """What one source makes; a text may hold several descriptions."""
    text, raws = (source, jdl.read(source)) if isinstance(source, str) else (as_text(source), (source,))
    for raw in raws:
        for submitted in members.expand(raw, submitter, config, sandbox):
            yield Checked(source=text, path=path, submitted=submitted)


def as_text(source: Mapping[str, object]) -> str:
    """A record as JSON, its expressions as their text."""
    return json.dumps(source, ensure_ascii=False, default=_expression)


def _expression(value: object) -> object:
    return value.text if isinstance(value, Unevaluated) else str(value)
