"""The root of the errors that an entry point may show to a person."""

from collections.abc import Mapping, Sequence
from typing import ClassVar

from requirements.problem import MOST_PROBLEMS, Problem


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
