"""Errors that an entry point may show to a person, and the problems they list."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from difflib import get_close_matches
from types import MappingProxyType
from typing import ClassVar, Final

#: Problems listed per input; otherwise the response could be as large as the input.
MOST_PROBLEMS: Final = 50
#: Unknown names per input for which a suggestion is searched.
MOST_HINTS: Final = 20


def format_time(at: datetime) -> str:
    """A time for people, to the minute."""
    return f"{at.astimezone(UTC):%Y-%m-%d %H:%M} UTC"


def format_duration(seconds: float) -> str:
    """Format what is known roughly: two digits, and the unit."""
    for unit, length in (("d", 86_400), ("h", 3600)):
        if seconds >= 2 * length:
            return f"{seconds / length:.0f} {unit}"
    return f"{seconds / 60:.0f} min"


def format_count(number: int, one: str, many: str | None = None) -> str:
    """A number with its noun, and with its verb if both forms are given: `1 job`, `1,200 jobs wait`."""
    return f"{number:,} {one if number == 1 else many or f'{one}s'}"


def shorten(text: str, *, most: int) -> str:
    """`text`, or its begin and end if it has more than `most` characters; both of whole words."""
    if len(text) <= most:
        return text
    half = most // 2
    begin, end = text[: half + 1].rpartition(" ")[0], text[-half - 1 :].partition(" ")[2]
    # A word so long that little would be left is cut.
    least = half // 2
    begin, end = (begin if len(begin) >= least else text[:half], end if len(end) >= least else text[-half:])
    return f"{begin} … {end} ({len(text)} characters)"


def format_ids(ids: Iterable[int]) -> str:
    """Ids in the shortest form that can be typed again: `1-300, 305`."""
    runs: list[list[int]] = []
    for job_id in sorted(ids):
        if runs and runs[-1][1] == job_id - 1:
            runs[-1][1] = job_id
        else:
            runs.append([job_id, job_id])
    return ", ".join(str(first) if first == last else f"{first}-{last}" for first, last in runs)


@dataclass(frozen=True, slots=True, kw_only=True)
class Problem:
    """One problem of an input, with its position."""

    path: str  #: position, such as `Resources/Sites/LCG.CERN.ch/MaxRamm` or `Requirements/Memory`
    message: str  #: the problem, with the value found and those allowed
    suggestion: str | None = None  #: the name probably meant
    file: str | None = None  #: name of the file or input
    line: int | None = None  #: line there, from 1
    column: int | None = None  #: column there, from 1
    excerpt: str | None = None  #: the line itself
    code: str | None = None  #: for programs, where a foreign specification names the kind of problem

    def __str__(self) -> str:
        meant = f", did you mean {self.suggestion}?" if self.suggestion else ""
        place = ":".join(str(part) for part in (self.file, self.line, self.column) if part is not None)
        where = f" ({place})" if place else ""
        shown = f"\n    {self.excerpt.strip()}" if self.excerpt else ""
        return f"{self.path}: {self.message}{meant}{where}{shown}"

    def as_json(self) -> dict[str, object]:
        """The fields that are set, by name."""
        return {name: value for name, value in asdict(self).items() if value is not None}


class PilotageError(Exception):
    """An error that the caller, not the program, has to correct."""

    #: Stable code for programs, the `error.code` of the HTTP interface.
    code: ClassVar[str] = "error"
    #: Data for programs in addition to the message; JSON types only.
    details: Mapping[str, object] = MappingProxyType({})


class InvalidInput(PilotageError):
    """Invalid input, with every problem of it."""

    code = "invalid_request"

    def __init__(self, problems: Sequence[Problem]) -> None:
        if not problems:
            raise ValueError("an error without a problem explains nothing")
        listed = [str(problem) for problem in problems[:MOST_PROBLEMS]]
        if more := len(problems) - len(listed):
            listed.append(f"and {format_count(more, 'more problem')}")
        super().__init__("\n".join(listed))
        self.problems = tuple(problems)
        shown = [problem.as_json() for problem in problems[:MOST_PROBLEMS]]
        self.details = {"problems": shown} | ({"more_problems": more} if more else {})


class InvalidJob(InvalidInput):
    """The description of a job is invalid; its sender must correct it."""

    code = "invalid_job"


class InvalidResource(InvalidInput):
    """The description of a resource, as sent by a pilot, is invalid."""

    code = "invalid_resource"


class InvalidRequest(InvalidInput):
    """A request is invalid in another way: an unknown filter, a missing field."""


def require_text(path: str, text: str) -> str:
    """The text without the blanks around it; `InvalidRequest` if there is nothing else."""
    if not (found := text.strip()):
        raise InvalidRequest([Problem(path=path, message="is blank, state a reason")])
    return found


def require_names(path: str, given: Sequence[str], known: Iterable[str]) -> None:
    """Raise `InvalidRequest` unless there are names at `path`, all of them known, and none twice."""
    allowed = list(known)
    listed = ", ".join(allowed)
    problems = [
        Problem(
            path=path, message=f"{name!r:.80} is not among {listed}", suggestion=did_you_mean(name, allowed)
        )
        for name in given
        if name not in allowed
    ]
    if not given:
        problems = [Problem(path=path, message=f"names no column; {listed} are allowed")]
    elif not problems and len(set(given)) < len(given):
        problems = [Problem(path=path, message="names a column twice")]
    if problems:
        raise InvalidRequest(problems)


class NotAllowed(PilotageError):
    """The caller is authenticated but lacks the right; the service logs it."""

    code = "not_allowed"


class NotFound(PilotageError):
    """No object has the given name; the suggestion is the name probably meant."""

    code = "not_found"
    noun: ClassVar[str] = "thing"  #: kind of object

    def __init__(self, name: str | int, suggestion: str | None = None) -> None:
        meant = f", did you mean {suggestion}?" if suggestion else ""
        super().__init__(f"{self.noun} {name} does not exist{meant}")
        self.name = name
        self.suggestion = suggestion
        self.details = {self.noun: name} | ({"did_you_mean": suggestion} if suggestion else {})


#: Characters of a word for which a suggestion is searched.
_LONGEST = 255


def did_you_mean(word: str, known: Iterable[str]) -> str | None:
    """Return the one of `known` that is most similar to `word`, ignoring case; None if none is close.

    A host is meant with its port, if there is one with one.
    """
    if len(word) > _LONGEST:
        return None
    by_fold = {name.casefold(): name for name in known}
    with_port = [name for fold, name in by_fold.items() if fold.startswith(f"{word.casefold()}:")]
    if len(with_port) == 1:
        return with_port[0]
    close = get_close_matches(word.casefold(), by_fold, n=1, cutoff=0.7)
    return by_fold[close[0]] if close else None
