"""What came of looking at a draft, or of the try to apply it."""

from collections.abc import Sequence
from dataclasses import dataclass

from pilotage.service import audit
from pilotage.service.models.preview import PreviewAnswer
from pilotage.service.pages.configuration.view import Changed
from pilotage.service.pages.page import Page
from requirements.errors import PilotageError
from requirements.problem import Problem


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """What is shown below the form."""

    changes: Sequence[Changed] | None = None  #: None: it did not come so far
    preview: PreviewAnswer | None = None
    failing: Sequence[str] = ()  #: guards that would refuse it
    problems: Sequence[Problem] = ()
    conflicts: Sequence[Changed] = ()  #: what others changed meanwhile
    current: int | None = None  #: the version in force, where the draft starts from an older one


def write_down(page: Page, error: PilotageError) -> None:
    """Note in the audit log a change that was refused, which is shown on the page and raised no further."""
    audit.refused(page.caller, method=page.request.method, path=page.request.url.path, reason=str(error))
