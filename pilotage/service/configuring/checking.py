"""What is wrong with a draft, while it is written."""

from collections.abc import Iterable
from dataclasses import dataclass

from cs_config import section_text
from cs_config.errors import VersionConflict
from cs_config.proposals import Proposal
from cs_config.rights import EditNotAllowed
from pilotage.service.callers import Caller
from pilotage.service.configuring import drafts, previews, rights
from pilotage.service.configuring.drafts import Draft
from pilotage.service.parts import Parts
from requirements.errors import InvalidInput, NotFound, PilotageError
from requirements.problem import Problem

#: What a person can mend, told as problems.
MENDABLE = (InvalidInput, EditNotAllowed, NotFound, VersionConflict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Checked:
    """What came to light."""

    errors: tuple[Problem, ...] = ()
    warnings: tuple[Problem, ...] = ()
    proposal: Proposal | None = None  #: None: there are errors


def check(parts: Parts, caller: Caller, draft: Draft) -> Checked:
    """Everything that is wrong with a draft, with lines of its own text where it is one."""
    try:
        proposal = drafts.proposal(parts, caller, draft)
    except MENDABLE as error:
        return Checked(errors=told(error, draft))
    warnings = previews.seen(proposal.warnings, proposal.after, rights.of(caller))
    return Checked(warnings=_placed(warnings, draft), proposal=proposal)


def told(error: PilotageError, draft: Draft) -> tuple[Problem, ...]:
    """An error as the problems that it is about."""
    if isinstance(error, InvalidInput):
        return _placed(error.problems, draft)
    if isinstance(error, EditNotAllowed):
        return tuple(Problem(path=path, message="not yours to change") for path in error.paths)
    return (Problem(path="", message=str(error)),)


def _placed(problems: Iterable[Problem], draft: Draft) -> tuple[Problem, ...]:
    if draft.text is None or draft.is_whole:
        return tuple(problems)
    return tuple(section_text.with_lines(problems, draft.names, draft.text))
