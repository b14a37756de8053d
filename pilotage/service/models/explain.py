"""Explanations of jobs and queues."""

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

from pydantic import AliasPath, BaseModel, Field

from cs_config.options import bounds
from cs_config.tree.address import QueueAddress
from matcher.explain.eligible_queues import RankedQueue
from matcher.explain.explanation import RequirementExclusion
from matcher.explain.queue_report import ExcludedWork, QueueSuggestion, WaitingWork
from pilotage.service.models import AnswerModel, StrictInput


class RankedQueues(BaseModel):
    """Eligible queues, the highest rank first, equal ones in random order."""

    eligible: int = Field(description="Number of eligible queues, listed or not.")
    queues: list[RankedQueue]


class ChangeAnswer(AnswerModel):
    """A change that would make queues eligible."""

    change: str = Field(validation_alias="text")
    gains: int = Field(description="Queues that become eligible, less those that it loses.")
    open_now: int = Field(
        description="Of these, those that no ban, downtime, limit or throttle closes to the job now."
    )
    example: QueueAddress = Field(description="One of these queues, `Site/CE/Queue`.")
    set: dict[str, Any] = Field(
        default_factory=dict,
        description="The same as an edit of the job: what `POST /jobs/edit` takes; empty: others must change "
        "something.",
    )


class ForwardingAnswer(AnswerModel):
    """Where each part of the requirements is decided, for queues where that is equal."""

    queues: int
    example: QueueAddress = Field(description="One of these queues, `Site/CE/Queue`.")
    at_queue: list[str] = Field(
        validation_alias=AliasPath("forwarding", "at_queue"),
        description="Parts that the queues' parameters, or all their nodes, fulfil.",
    )
    flags: list[str] = Field(
        validation_alias=AliasPath("forwarding", "flags"),
        description="Parts passed to the batch system as arguments of the submit command.",
    )
    left: str | None = Field(
        validation_alias=AliasPath("forwarding", "left"),
        description="The part that the matcher decides by the facts of the node; or null.",
    )
    sufficient: bool = Field(
        validation_alias=AliasPath("forwarding", "sufficient"),
        description="Whether the arguments express all that is left, so that a job manager may get the job.",
    )


class StartAnswer(BaseModel):
    """When a waiting job will probably start, and how often such forecasts held."""

    earliest: datetime | None = Field(description="Null: there is no forecast.")
    latest: datetime | None = Field(description="Null: there is no forecast, or no end is known.")
    held: int = Field(description="Of the last forecasts for jobs of its VO, those that held.")
    of: int = Field(description="Number of these forecasts, at most 1,000.")
    text: str = Field(description="For people; if there is no forecast, why.")


class GroupQuery(StrictInput):
    """The jobs of a group."""

    job_group: str = Field(min_length=1, max_length=bounds.NAME, description="`JobGroup` of the description.")
    vo: str | None = Field(default=None, max_length=bounds.NAME, description="Only jobs of this VO.")
    owner: str | None = Field(default=None, max_length=bounds.NAME, description="Owner of the jobs.")


class EndAnswer(BaseModel):
    """When the jobs of a group are probably done."""

    waiting: int = Field(description="Jobs that no pilot has.")
    last_start: StartAnswer | None = Field(
        description="When the last of them probably starts; null: none waits."
    )
    earliest: datetime | None = Field(description="Probable end of the last job; null: there is no forecast.")
    latest: datetime | None = Field(description="Null: there is no forecast, or no end is known.")
    run_time: float | None = Field(
        description="Median in seconds, for which jobs that still run count, too; null: too few are done."
    )
    done: int = Field(description="Number of done jobs by which it is known, at most 1,000.")
    text: str = Field(description="For people; if there is no forecast, why.")


class JobExplanation(BaseModel):
    """Why a job runs or does not."""

    job_id: int | None = Field(description="Id of the job; null: a description that was not submitted.")
    status: str | None
    headline: str = Field(description="What holds the job now, in a sentence.")
    is_held: bool = Field(description="Something keeps the job from every pilot now.")
    eligible_queues: int
    open_queues: int = Field(description="Eligible queues that are not closed to the job now.")
    candidate_queues: int = Field(description="Queues that the VO may use now.")
    sites: list[str] | None = Field(
        default=None, description="With `NarrowSites`: the sites that have an eligible queue now."
    )
    reasons: Sequence[RequirementExclusion] = Field(
        description="Every failing requirement, the costliest first."
    )
    changes: list[ChangeAnswer] = Field(description="Smallest changes that help, best first.")
    left_out: list[str] = Field(
        default_factory=list, description="Changes that were not tried because of their number."
    )
    now: list[str] = Field(description="Temporary obstacles, such as bans, limits and throttles.")
    start: StartAnswer | None = Field(
        default=None,
        description="When it will probably start; null: it would not wait, or no queue is eligible.",
    )
    forwarding: list[ForwardingAnswer] | None = Field(
        default=None, description="On request: where each part of its Requirements is decided."
    )


class QueueExplanation(BaseModel):
    """Report for one queue: jobs it could run, requirements that exclude others, changes that would help."""

    queue: QueueAddress = Field(description="`Site/CE/Queue`.")
    waiting: Mapping[str, WaitingWork] = Field(description="All waiting jobs, by VO.")
    serves: Mapping[str, WaitingWork] = Field(description="Jobs that the queue may run, by VO.")
    left_out: Mapping[str, WaitingWork] = Field(
        description="Jobs of many or long requirements for which nothing was computed, by VO."
    )
    reasons: list[ExcludedWork] = Field(description="Requirements that exclude the rest, costliest first.")
    changes: Sequence[QueueSuggestion] = Field(
        description="Changes of the queue that would attract jobs, best first."
    )
    now: list[str] = Field(description="Current bans, limits, throttles and recent pilots.")
