"""Why is a job waiting: its explanation as a page, with bars of queues per requirement."""

from collections.abc import Sequence
from dataclasses import dataclass
from random import Random

from fastapi import APIRouter
from fastapi.responses import HTMLResponse

from pilotage.service.auth import visibility
from pilotage.service.auth.access import EVERY_ROLE, allow
from pilotage.service.models.explain import ChangeAnswer, JobExplanation, ReasonAnswer
from pilotage.service.models.jobs import JobIdPath
from pilotage.service.pages.page import PageOf, PageRoute
from pilotage.service.queries import explanations
from taskqueue.db import database
from taskqueue.jobs import jobs

#: Statuses of jobs that may still look for a queue.
_STILL_TO_GO = frozenset(
    {None, "Submitting", "Received", "Checking", "Scouting", "Staging", "Waiting", "Rescheduled"}
)
#: Exclusions by rights, not by requirements; their queues are not among the candidates.
_RIGHTS = frozenset({"VO", "Enabled"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Bar:
    """Shares of all queues in percent."""

    alone: float  #: fail only this
    excluded: float  #: fail this and something else
    left: float  #: pass it


@dataclass(frozen=True, slots=True, kw_only=True)
class ExplanationRow:
    """A requirement with its bar."""

    reason: ReasonAnswer
    bar: Bar
    passes: int  #: queues


@dataclass(frozen=True, slots=True, kw_only=True)
class Help:
    """A suggested change with its bar."""

    change: ChangeAnswer
    eligible: float  #: queues eligible without it, in percent of all
    gained: float  #: additional ones


@dataclass(frozen=True, slots=True, kw_only=True)
class Explained:
    """An explanation with everything that is drawn."""

    found: JobExplanation
    verdict: str
    tone: str  #: good, warn, bad
    eligible: float  #: percent of the candidate queues
    rows: Sequence[ExplanationRow]  #: requirements that exclude candidate queues
    rights: Sequence[ReasonAnswer]  #: matching queues that are closed to the VO
    helps: Sequence[Help]

    @property
    def is_to_go(self) -> bool:
        """Whether the job still needs a queue."""
        return self.found.status in _STILL_TO_GO


def explanation_view(found: JobExplanation) -> Explained:
    """Prepare an explanation for drawing."""
    all_queues = found.candidate_queues
    verdict, tone = _verdict(found)
    return Explained(
        found=found,
        verdict=verdict,
        tone=tone,
        eligible=_percent(found.eligible_queues, all_queues),
        rows=[_row(each, all_queues) for each in found.reasons if each.requirement not in _RIGHTS],
        rights=[each for each in found.reasons if each.requirement in _RIGHTS],
        helps=[_help(each, found) for each in found.changes],
    )


def _verdict(found: JobExplanation) -> tuple[str, str]:
    eligible, candidates = found.eligible_queues, found.candidate_queues
    if found.status not in _STILL_TO_GO:
        return f"It is {found.status}: it no longer waits.", "good"
    if not candidates:
        return "There is no queue that its VO may use.", "bad"
    if not eligible:
        return f"No queue fits: each of the {candidates:,} that its VO may use fails a requirement.", "bad"
    fits = "fits" if eligible == 1 else "fit"
    return f"{eligible:,} of the {candidates:,} queues that its VO may use {fits}.", "good"


def _row(reason: ReasonAnswer, queues: int) -> ExplanationRow:
    both = reason.excluded - reason.only_this
    return ExplanationRow(
        reason=reason,
        bar=Bar(
            alone=_percent(reason.only_this, queues),
            excluded=_percent(both, queues),
            left=_percent(queues - reason.excluded, queues),
        ),
        passes=max(0, queues - reason.excluded),
    )


def _help(change: ChangeAnswer, found: JobExplanation) -> Help:
    return Help(
        change=change,
        eligible=_percent(found.eligible_queues, found.candidate_queues),
        gained=_percent(change.gains, found.candidate_queues),
    )


def _percent(part: int, whole: int) -> float:
    return round(min(100.0, max(0.0, 100 * part / whole)), 2) if whole else 0.0


explanation_router = APIRouter(route_class=PageRoute)

#: Eligible queues that are listed.
_LISTED_QUEUES = 10


@explanation_router.get("/jobs/{job_id}/why")
@allow(*EVERY_ROLE)
def why(page: PageOf, job_id: JobIdPath) -> HTMLResponse:
    """Show what excludes which queues, what would help, and what blocks the job now."""
    config, now = page.parts.live.current, page.parts.clock()
    with database.reading(page.parts.engine) as conn:
        job = visibility.require_readable(page.caller, jobs.get_job(conn, job_id))
        question = explanations.ask_about_job(conn, config, job, now=now)
        found = explanations.explain_job(conn, config, question, forwarding=True, now=now)
    ranked = explanations.rank_queues(config, question, Random(job_id))
    return page.render(
        "jobs/explained.html" if page.is_fragment else "jobs/why.html",
        job=job,
        has_page=visibility.controls(page.caller, vo=job.vo, owner=job.owner),
        explained=explanation_view(found),
        ranked=ranked[:_LISTED_QUEUES],
    )
