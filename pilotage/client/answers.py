"""Answers of the service as values with types: explanations, counts, previews of configurations.

Each is the mapping that the service sent, with all that newer services add, and has what matters as
attributes; what an older service leaves out has its default there.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any, ClassVar, Self


@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class Answer(dict[str, Any]):
    """What the service sent, by its names; attributes are those of its fields that matter."""

    #: Attributes with several answers in them.
    parts: ClassVar[Mapping[str, type["Answer"]]] = {}

    @classmethod
    def from_json(cls, found: Mapping[str, Any]) -> Self:
        """The answer of parsed JSON; unknown fields are only in the mapping, missing ones have defaults."""
        own = {each.name: found[each.name] for each in fields(cls) if each.name in found}
        for name, kind in cls.parts.items():
            if own.get(name) is not None:
                own[name] = [kind.from_json(each) for each in own[name]]
        answer = cls(**own)
        answer.update({**found, **{name: own[name] for name in cls.parts if name in own}})
        return answer


@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class FailingRequirement(Answer):
    """A requirement that excludes queues."""

    requirement: str = ""
    wanted: str = ""  #: by the job
    excluded: int = 0  #: queues
    only_this: int = 0  #: queues that nothing else excludes
    example: Mapping[str, Any] | None = None  #: a `queue`, and what it `has`
    closed: str | None = (
        None  #: of queues that the VO may not use, for people; None: a requirement of the job
    )


@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class HelpfulChange(Answer):
    """A change of a job that makes queues eligible."""

    change: str = ""
    gains: int = 0  #: queues
    open_now: int | None = None  #: of these, without bans, downtimes, limits and throttles; None: unknown
    example: str = ""  #: one of them
    set: Mapping[str, Any] = field(default_factory=dict)  #: for `Client.edit`; empty: others must change it


@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class EligibilityReport(Answer):
    """Why a job runs or does not."""

    parts: ClassVar[Mapping[str, type[Answer]]] = {"reasons": FailingRequirement, "changes": HelpfulChange}

    job_id: int | None = None  #: None: a description that was not submitted
    status: str | None = None
    headline: str = ""  #: what holds the job now; empty: the service is of an earlier release
    is_held: bool = False  #: something keeps it from every pilot now
    eligible_queues: int = 0
    open_queues: int | None = None  #: eligible ones that are not closed to it now
    candidate_queues: int = 0  #: that the VO may use now
    reasons: Sequence[FailingRequirement] = ()  #: the costliest first
    changes: Sequence[HelpfulChange] = ()  #: the best first
    now: Sequence[str] = ()  #: what holds the job up at this moment
    sites: Sequence[str] | None = None  #: with an eligible queue, where jobs are narrowed to sites
    start: Mapping[str, Any] | None = None  #: when it will probably start; None: it does not wait
    forwarding: Sequence[Mapping[str, Any]] | None = None  #: on request: what is decided where
    left_out: Sequence[str] = ()  #: changes that were not tried


@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class CountedJobs(Answer):
    """A number of jobs with equal values of some fields, which are in the mapping."""

    count: int = 0
    waited: Mapping[str, float] | None = None  #: seconds by cause, of jobs that ended lately

    @property
    def group(self) -> Mapping[str, Any]:
        """The values that these jobs have in common, by field."""
        return {name: value for name, value in self.items() if name not in ("count", "waited")}


@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class ConfigDifference(Answer):
    """A path of the configuration that changes; `before` and `after` are None if there is no value."""

    path: str = ""
    change: str = ""  #: added, removed or changed
    before: Any = None
    after: Any = None


@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class ConfigWarning(Answer):
    """A setting that is allowed and probably a mistake."""

    path: str = ""
    message: str = ""
    suggestion: str | None = None  #: the name probably meant


@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class AffectedJobs(Answer):
    """Waiting jobs with equal requirements that lose their last queue, or get their first one."""

    vo: str = ""
    jobs: int = 0
    example_job: int | None = None
    becomes: str = ""  #: stuck or freed
    queues: Sequence[str] = ()  #: the first of those that are lost or gained


@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class AffectedPool(Answer):
    """A SubmitPool that gains or loses queues; long lists are cut."""

    pool: str = ""
    vo: str = ""
    waiting: int = 0  #: jobs
    gains: int = 0
    gained: Sequence[str] = ()
    loses: int = 0
    lost: Sequence[str] = ()
    without_queue: bool = False


@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class ConfigPreview(Answer):
    """The effects that a change of the configuration would have now."""

    parts: ClassVar[Mapping[str, type[Answer]]] = {
        "changes": ConfigDifference,
        "warnings": ConfigWarning,
        "classes": AffectedJobs,
        "pools": AffectedPool,
    }

    version: int = 0  #: in force now
    changes: Sequence[ConfigDifference] = ()
    warnings: Sequence[ConfigWarning] = ()
    totals: Mapping[str, int] = field(default_factory=dict)  #: numbers that guards can test
    new_queues: Sequence[str] = ()
    removed_queues: Sequence[str] = ()
    classes: Sequence[AffectedJobs] = ()
    pools: Sequence[AffectedPool] = ()
    running: Sequence[Mapping[str, Any]] = ()  #: jobs and pilots of queues that are lost to them
    closed: Sequence[Mapping[str, Any]] = ()  #: places that take no jobs, and why
