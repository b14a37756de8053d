"""Explanations on the wire."""

from pydantic import BaseModel, Field

from matcher.explain.decision_split import DecisionSplit
from matcher.explain.explanation import RequirementExclusion
from matcher.explain.queue_report import ExcludedWork, QueueSuggestion, WaitingWork
from matcher.explain.suggestions import SuggestedChange


class Example(BaseModel):
    """A queue that fails a requirement."""

    queue: str = Field(description="`Site/CE/Queue`.")
    has: str | None = Field(description="What it has; null: nothing of that name.")


class ReasonAnswer(BaseModel):
    """What one requirement costs."""

    requirement: str
    wanted: str
    excluded: int = Field(description="Queues that fail it.")
    only_this: int = Field(description="Queues that fail it and nothing else.")
    example: Example

    @classmethod
    def of(cls, found: RequirementExclusion) -> "ReasonAnswer":
        """The reason as it is told."""
        return cls(
            requirement=found.requirement,
            wanted=found.wanted,
            excluded=found.excluded,
            only_this=found.only_this,
            example=Example(queue=str(found.example), has=found.has),
        )


class RankedQueueAnswer(BaseModel):
    """A queue that a job may run in."""

    queue: str = Field(description="`Site/CE/Queue`.")
    rank: float | None = Field(description="By the job's `Rank`, else by the queue's; null: no number.")


class RankedQueues(BaseModel):
    """Eligible queues, the highest rank first, equal ones in random order."""

    eligible: int = Field(description="How many there are, told or not.")
    queues: list[RankedQueueAnswer]


class ChangeAnswer(BaseModel):
    """A change that would make queues eligible."""

    change: str
    gains: int = Field(description="Queues, without those that are closed to the job now.")
    example: str = Field(description="One of them, `Site/CE/Queue`.")

    @classmethod
    def of(cls, found: SuggestedChange) -> "ChangeAnswer":
        """The change as it is told."""
        return cls(change=found.text, gains=found.gains, example=str(found.example))


class ForwardingAnswer(BaseModel):
    """What of the requirements is decided where, at queues where it is the same."""

    queues: int
    example: str = Field(description="One of them, `Site/CE/Queue`.")
    at_queue: list[str] = Field(description="What the queues' own parameters, or all their nodes, fulfil.")
    flags: list[str] = Field(description="What pilots tell the batch system, as arguments.")
    left: str | None = Field(description="What the matcher asks the facts of the node for; null: nothing.")

    @classmethod
    def of(cls, found: DecisionSplit) -> "ForwardingAnswer":
        """The decisions as they are told."""
        return cls(
            queues=found.queues,
            example=str(found.example),
            at_queue=list(found.forwarding.at_queue),
            flags=list(found.forwarding.flags),
            left=found.forwarding.left,
        )


class JobExplanation(BaseModel):
    """Why a job runs or does not."""

    job_id: int | None = Field(description="Null: a description that was not submitted.")
    status: str | None
    eligible_queues: int
    candidate_queues: int = Field(description="Queues that the VO may use now.")
    reasons: list[ReasonAnswer] = Field(description="Every failing requirement, the costliest first.")
    changes: list[ChangeAnswer] = Field(description="Smallest changes that help, best first.")
    left_out: list[str] = Field(
        default_factory=list, description="What was not looked at, since it would have been too much work."
    )
    now: list[str] = Field(description="What holds it back at this moment.")
    forwarding: list[ForwardingAnswer] | None = Field(
        default=None, description="If asked for: what of its Requirements is decided where."
    )


class WorkAnswer(BaseModel):
    """Waiting jobs."""

    jobs: int
    classes: int = Field(description="Distinct sets of requirements that they have.")

    @classmethod
    def of(cls, work: WaitingWork) -> "WorkAnswer":
        """The numbers."""
        return cls(jobs=work.jobs, classes=work.classes)


class WaitingJobExample(BaseModel):
    """A job that the queue cannot run."""

    vo: str
    job_id: int | None = Field(description="Null: a job of a VO that the token does not stand for.")
    wanted: str


class ExcludedAnswer(BaseModel):
    """What one requirement keeps away from a queue."""

    requirement: str
    has: str | None = Field(description="What the queue has; null: nothing of that name.")
    jobs: int = Field(description="Waiting jobs that fail by it.")
    classes: int
    only_this: int = Field(description="Jobs that fail by it and by nothing else.")
    example: WaitingJobExample

    @classmethod
    def of(cls, found: ExcludedWork, *, readable: bool) -> "ExcludedAnswer":
        """The requirement as it is told; ids of jobs only to those who may read of the VO."""
        job_id = found.example_job if readable else None
        return cls(
            requirement=found.requirement,
            has=found.has,
            jobs=found.work.jobs,
            classes=found.work.classes,
            only_this=found.only_this,
            example=WaitingJobExample(vo=found.vo, job_id=job_id, wanted=found.wanted),
        )


class OfferAnswer(BaseModel):
    """What a queue could offer to serve more."""

    offer: str
    gains: int = Field(description="Waiting jobs that it could run besides.")
    vos: list[str] = Field(description="Whose.")

    @classmethod
    def of(cls, found: QueueSuggestion) -> "OfferAnswer":
        """The offer as it is told."""
        return cls(offer=found.text, gains=found.gains, vos=list(found.vos))


class QueueExplanation(BaseModel):
    """What waits, as it stands to one queue."""

    queue: str = Field(description="`Site/CE/Queue`.")
    waiting: dict[str, WorkAnswer] = Field(description="All that waits, by VO.")
    serves: dict[str, WorkAnswer] = Field(description="What the queue may run, by VO.")
    reasons: list[ExcludedAnswer] = Field(description="What excludes the rest, the costliest first.")
    changes: list[OfferAnswer] = Field(description="What it could offer, best gain first.")
    now: list[str] = Field(description="What holds there now: bans, limits, throttles, pilots that asked.")
