"""The configuration on the wire.

What a change of the configuration would do, on the wire.
"""

from datetime import datetime
from typing import Any

from pydantic import BaseModel, ConfigDict, Field


class ConfigAnswer(BaseModel):
    """The configuration in force, as far as the caller may see it."""

    version: int
    config: dict[str, Any] = Field(description="The tree.")
    text: str | None = Field(default=None, description="The source as it was written; operators only.")
    source: str | None = Field(default=None, description="File that it came from, or `api`; operators only.")


class NewConfig(BaseModel):
    """A whole configuration: exactly one of `config` and `text`."""

    model_config = ConfigDict(extra="forbid")

    config: dict[str, Any] | None = Field(default=None, description="The tree.")
    text: str | None = Field(default=None, description="The YAML source, which keeps its comments.")
    source: str = Field(default="api", max_length=255, description="File that the text came from.")
    message: str = Field(default="", max_length=2000, description="Why.")
    guard: list[str] = Field(
        default_factory=list,
        max_length=20,
        description="Conditions such as stuck_jobs=0: where one does not hold, nothing is changed.",
    )


class Edits(BaseModel):
    """Edits of single paths; those of other paths that somebody else makes meanwhile stay."""

    model_config = ConfigDict(extra="forbid")

    set: dict[str, Any] = Field(
        default_factory=dict,
        description="Path, such as Resources/Sites/LCG.CERN.ch/MaxRAM, to a value, a list or a section.",
    )
    remove: list[str] = Field(default_factory=list, max_length=10_000, description="Paths.")
    message: str = Field(default="", max_length=2000, description="Why.")
    guard: list[str] = Field(
        default_factory=list,
        max_length=20,
        description="Conditions such as stuck_jobs=0: where one does not hold, nothing is changed.",
    )


class Proposed(NewConfig):
    """A change that is only looked at: edits of single paths, or a whole configuration."""

    set: dict[str, Any] = Field(default_factory=dict, description="As in `PATCH`.")
    remove: list[str] = Field(default_factory=list, max_length=10_000, description="As in `PATCH`.")


class DifferenceAnswer(BaseModel):
    """A path that two versions do not have alike; a section that only one has is one path."""

    path: str
    change: str = Field(description="added, removed or changed")
    before: Any = Field(default=None, description="Left out where there was nothing.")
    after: Any = Field(default=None, description="Left out where there is nothing.")


class NewVersion(BaseModel):
    """The version that is in force now."""

    version: int


class ChangedConfig(NewVersion):
    """The version that is in force now, and what is another in it."""

    changes: list[DifferenceAnswer] = Field(description="Empty: nothing was stored.")


class Rollback(BaseModel):
    """Make an older version the newest one."""

    model_config = ConfigDict(extra="forbid")

    version: int = Field(ge=1, le=2**31 - 1)
    message: str = Field(default="", max_length=2000, description="Why.")


class VersionAnswer(BaseModel):
    """What is known about a version."""

    version: int
    digest: str = Field(description="SHA-256 of its text.")
    source: str
    author: str
    message: str
    created_at: datetime
    paths: list[str] | None = Field(
        default=None, description="What it changed, as far as the caller may see it; None: not looked at."
    )


class Versions(BaseModel):
    """The latest versions, the newest first."""

    versions: list[VersionAnswer]


class Since(BaseModel):
    """The version that made a value what it is."""

    version: int
    author: str
    stored_at: datetime
    source: str = Field(description="File that the version came from, or `api`.")


class KeptAway(BaseModel):
    """Waiting jobs that a parameter keeps away from a queue."""

    jobs: int
    only_this: int = Field(description="Those that nothing else keeps away.")


class BlamedValue(BaseModel):
    """A value, where it is written, who wrote it, and what it keeps away."""

    path: str = Field(description="Below the path that was asked for.")
    value: Any
    origin: str = Field(description="Level, file and line.")
    places: list[str] = Field(description="Paths from the top where it is written.")
    since: Since | None = Field(description="Null: it is written nowhere.")
    excludes: KeptAway | None = Field(description="Of a queue's parameters; null of other values.")


class BlameAnswer(BaseModel):
    """Values with their origin."""

    config_version: int
    values: list[BlamedValue]


class DifferencesAnswer(BaseModel):
    """What differs between two versions, as far as the caller may see it."""

    from_version: int
    to_version: int
    changes: list[DifferenceAnswer]


class VoPreview(BaseModel):
    """What becomes of the jobs of a VO that wait."""

    waiting: int
    stuck: int = Field(description="Their last queue goes.")
    freed: int = Field(description="They get their first queue.")
    gain: int = Field(description="They get more queues.")
    lose: int = Field(description="They get fewer queues.")


class PoolPreview(BaseModel):
    """A pool that gains or loses queues; of many queues the first are named."""

    pool: str
    vo: str
    waiting: int = Field(description="Jobs.")
    gains: int
    gained: list[str]
    loses: int
    lost: list[str]
    without_queue: bool = Field(description="None is left.")


class ClassPreview(BaseModel):
    """Waiting jobs that ask the same and become stuck or free."""

    vo: str
    jobs: int
    example_job: int | None = Field(description="Of VOs that the caller may read about.")
    becomes: str = Field(description="stuck or freed")
    queues: list[str] = Field(description="The first of those that go, or that come.")


class GoingPreview(BaseModel):
    """A VO's work at a queue that it may not use any more."""

    queue: str
    vo: str
    why: str
    jobs: int
    pilots: int


class ClosedPreview(BaseModel):
    """A place that would take no job more at once."""

    scope: str
    why: str


class VainPreview(BaseModel):
    """A parameter that helps no job that waits."""

    vo: str
    name: str
    queues: int
    jobs: int = Field(description="Waiting ones that ask for it and miss it there; 0: none asks.")


class WarningPreview(BaseModel):
    """Something that is allowed, and probably not meant so."""

    path: str
    message: str
    suggestion: str | None = Field(default=None, description="The name that was probably meant.")
    line: int | None = Field(default=None, description="Of the text that would be in force.")


class PreviewAnswer(BaseModel):
    """What a change would do at this moment; of each list the first, the numbers are in `totals`."""

    version: int = Field(description="In force now.")
    changes: list[DifferenceAnswer]
    warnings: list[WarningPreview] = Field(description="Those that were not there before.")
    totals: dict[str, int] = Field(description="What a guard may ask about.")
    new_queues: list[str]
    removed_queues: list[str]
    jobs: dict[str, VoPreview] = Field(description="By VO.")
    classes: list[ClassPreview]
    pools: list[PoolPreview]
    running: list[GoingPreview]
    closed: list[ClosedPreview]
    in_vain: list[VainPreview]
