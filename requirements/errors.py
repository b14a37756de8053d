"""One thing that is wrong with an input: where, what was seen, what would be right.

The root of the errors that an entry point may show to a person.

The name that was probably meant.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from difflib import get_close_matches
from typing import ClassVar, Final

#: Problems of one input that are told; input that is full of them would make an answer as large.
MOST_PROBLEMS: Final = 50
#: Names of one input for which the one that was probably meant is looked for.
MOST_HINTS: Final = 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Problem:
    """One thing that is wrong, told so that its author can mend it."""

    path: (
        str  #: where in the structure, such as `Resources/Sites/LCG.CERN.ch/MaxRamm` or `Requirements/Memory`
    )
    message: str  #: what is wrong, with what was seen and what is allowed
    suggestion: str | None = None  #: the name that was probably meant
    file: str | None = None  #: the file or input it stands in
    line: int | None = None  #: line there, from 1
    column: int | None = None  #: column there, from 1
    excerpt: str | None = None  #: the line itself, for a person to look at

    def __str__(self) -> str:
        meant = f", did you mean {self.suggestion}?" if self.suggestion else ""
        place = ":".join(str(part) for part in (self.file, self.line, self.column) if part is not None)
        where = f" ({place})" if place else ""
        shown = f"\n    {self.excerpt.strip()}" if self.excerpt else ""
        return f"{self.path}: {self.message}{meant}{where}{shown}"

    def as_json(self) -> dict[str, object]:
        """What is known of it, by name."""
        return {name: value for name, value in asdict(self).items() if value is not None}


class PilotageError(Exception):
    """Something that the caller, not the program, has to put right."""

    #: Stable word for machines, the `error.code` of the HTTP interface.
    code: ClassVar[str] = "error"

    @property
    def details(self) -> Mapping[str, object]:
        """Facts for machines beside the message; JSON types only."""
        return {}


class InvalidInput(PilotageError):
    """What was sent does not say what it should; every problem of it is listed."""

    code = "invalid_request"

    def __init__(self, problems: Sequence[Problem]) -> None:
        if not problems:
            raise ValueError("an error without a problem explains nothing")
        told = [str(problem) for problem in problems[:MOST_PROBLEMS]]
        if more := len(problems) - len(told):
            told.append(f"and {more} more problems")
        super().__init__("\n".join(told))
        self.problems = tuple(problems)

    @property
    def details(self) -> Mapping[str, object]:
        """The problems one by one, under `problems`; of very many the first, and the number of the others."""
        told = [problem.as_json() for problem in self.problems[:MOST_PROBLEMS]]
        more = len(self.problems) - len(told)
        return {"problems": told} | ({"more_problems": more} if more else {})


class InvalidJob(InvalidInput):
    """The description of a job is wrong; its sender has to mend it."""

    code = "invalid_job"


class InvalidResource(InvalidInput):
    """The description of a resource, as a pilot presents it, is wrong."""

    code = "invalid_resource"


class InvalidRequest(InvalidInput):
    """A request is wrong in another way: an unknown filter, a missing field."""


class NotAllowed(PilotageError):
    """Who asks is known, but may not have this; the service writes it down."""

    code = "not_allowed"


class NotFound(PilotageError):
    """Nothing has the name that the caller gave; the suggestion is what was probably meant."""

    code = "not_found"
    noun: ClassVar[str] = "thing"  #: what it would be

    def __init__(self, name: str | int, suggestion: str | None = None) -> None:
        meant = f", did you mean {suggestion}?" if suggestion else ""
        super().__init__(f"{self.noun} {name} does not exist{meant}")
        self.name = name
        self.suggestion = suggestion

    @property
    def details(self) -> Mapping[str, object]:
        """What was asked for, and what was probably meant."""
        return {self.noun: self.name} | ({"did_you_mean": self.suggestion} if self.suggestion else {})


#: Characters of a word that is compared; nobody mistypes a longer name.
_LONGEST = 255


def did_you_mean(word: str, known: Iterable[str]) -> str | None:
    """The one of `known` that looks most like `word`, compared without case; None if none is close."""
    if len(word) > _LONGEST:
        return None
    by_fold = {name.casefold(): name for name in known}
    close = get_close_matches(word.casefold(), by_fold, n=1, cutoff=0.7)
    return by_fold[close[0]] if close else None
