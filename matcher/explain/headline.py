"""What holds a job now, in a sentence: the first that an explanation tells."""

from collections.abc import Sequence
from dataclasses import dataclass

from matcher.explain.blockers import HoldingText, SwitchedOffText
from requirements.errors import format_count
from requirements.states import UNMATCHED, JobStatus

#: Statuses of jobs that may still look for a queue; None: not submitted.
STILL_TO_GO = frozenset({None, *UNMATCHED})


@dataclass(frozen=True, slots=True, kw_only=True)
class Headline:
    """A sentence, and whether something keeps the job from every pilot now."""

    text: str
    is_held: bool


def summarize(
    status: JobStatus | None, *, eligible: int, open_: int, candidates: int, obstacles: Sequence[str]
) -> Headline:
    """The headline of a job with numbers of queues, and the texts of `list_blockers`."""
    if status not in STILL_TO_GO:
        would = f"{_describe_share(eligible, candidates)} would fit"
        return Headline(text=f"It is {status}: it no longer waits. Submitted now, {would}.", is_held=False)
    fits = _describe_fit(eligible, candidates)
    if not candidates or not eligible:
        off = next((each for each in obstacles if isinstance(each, SwitchedOffText)), None)
        text = fits if off is None else f"No queue fits that is switched on: {off}"
        return Headline(text=f"{text}.", is_held=True)
    if hold := next((each for each in obstacles if isinstance(each, HoldingText)), None):
        return Headline(text=f"{fits}, but {hold}.", is_held=True)
    now = f"; {open_:,} of them {'is' if open_ == 1 else 'are'} open now" if open_ < eligible else ""
    return Headline(text=f"{fits}{now}.", is_held=False)


def _describe_fit(eligible: int, candidates: int) -> str:
    if not candidates:
        return "There is no queue that its VO may use"
    if eligible:
        verb = "fits" if eligible == 1 else "fit"
        share = _describe_share(eligible, candidates)
        return f"{share[0].upper()}{share[1:]} {verb}"
    who = "the only one" if candidates == 1 else f"each of the {candidates:,}"
    return f"No queue fits: {who} that its VO may use fails a requirement"


def _describe_share(eligible: int, candidates: int) -> str:
    if eligible == candidates == 1:
        return "the only queue that its VO may use"
    return f"{eligible:,} of the {format_count(candidates, 'queue')} that its VO may use"
