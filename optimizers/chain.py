"""A job's way through the steps, one after the other. Pure: what is decided here is written by `batch`.

A job that was held goes through all steps again, in front of the configuration as it is then; only
delays that are over are not waited for twice (`Candidate.held_by`).
"""

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from optimizers.alike import is_alike
from optimizers.candidate import Candidate
from optimizers.context import Context
from optimizers.outcome import Done, Failed, Hold, Outcome

Step = Callable[[Candidate, Context], Outcome]

#: The step that every job begins with: it says which others follow.
FIRST = "JobPath"

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class Passage:
    """How far a job came, and what the last step that looked at it said."""

    outcome: Outcome
    step: str  #: the one that said so
    passed: tuple[str, ...]  #: the steps that let it through, in order
    alike: bool = False  #: nothing was looked at that jobs which ask the same could differ in

    @property
    def candidate(self) -> Candidate | None:
        """The job as it came through; None: it did not."""
        return self.outcome.candidate if isinstance(self.outcome, Done) else None


def run(candidate: Candidate, steps: Mapping[str, Step], context: Context) -> Passage:
    """Lead a job through `JobPath` and the steps that this one names, until one holds or fails it."""
    passed: list[str] = []
    asked = [FIRST]
    outcome = _ask(FIRST, candidate, steps, context)
    name = FIRST
    while isinstance(outcome, Done):
        passed.append(name)
        if len(passed) > len(outcome.candidate.path):
            break
        name = outcome.candidate.path[len(passed) - 1]
        asked.append(name)
        outcome = _ask(name, outcome.candidate, steps, context)
    if isinstance(outcome, Done) and outcome.candidate.requirement_class is None:
        outcome = Failed(
            reason=f"{name} is the last optimizer and did not say what the job asks of a resource"
        )
    same = all(is_alike(steps.get(each)) for each in asked)
    return Passage(outcome=outcome, step=name, passed=tuple(passed), alike=same)


def _ask(name: str, candidate: Candidate, steps: Mapping[str, Step], context: Context) -> Outcome:
    """What a step says; a defect of a step holds the one job that shows it, not its batch.

    A job waits for a step that only the configuration names and nobody has installed.
    """
    step = steps.get(name)
    if step is None:
        reason = f"there is no optimizer {name}, installed are {', '.join(sorted(steps))}"
        return Failed(reason=reason) if name in candidate.description.job_path else Hold(reason=reason)
    try:
        return step(candidate, context)
    except Exception as error:
        log.exception("optimizer %s broke on job %d", name, candidate.job_id)
        return Hold(reason=f"the optimizer broke: {type(error).__name__}: {error}"[:500])
