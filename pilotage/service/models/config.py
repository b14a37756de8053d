"""The configuration, its changes and their previews."""

from collections.abc import Mapping
from datetime import datetime
from typing import Any

from pydantic import AliasPath, BaseModel, Field

from cs_config.editing.history import HistoryEntry
from cs_config.options import bounds
from matcher.explain.queue_report import ParameterImpact, WaitingWork
from matcher.preview.lowered_floors import LoweredFloor
from matcher.preview.outlook import ClosedPlace, LostWork, UselessParameter, VoJobs
from matcher.preview.type_shifts import TypeShift
from pilotage.service.models import AnswerModel, StrictInput


class ConfigAnswer(BaseModel):
    """The configuration in force, as far as the caller may see it."""

    version: int
    config: dict[str, Any] = Field(description="The configuration as a tree.")
    text: str | None = Field(default=None, description="The source as it was written; operators only.")
    source: str | None = Field(default=None, description="Its file, or `api`; operators only.")


class ConfigChangeBody(StrictInput):
    """Fields that every change of the configuration may have."""

    message: str = Field(default="", max_length=2000, description="Why.")
    guard: list[str] = Field(
        default_factory=list,
        max_length=20,
        description="Conditions such as stuck_jobs=0: if one does not hold, nothing is changed.",
    )


class NewConfig(ConfigChangeBody):
    """A whole configuration: exactly one of `config` and `text`."""

    config: dict[str, Any] | None = Field(default=None, description="The tree.")
    text: str | None = Field(default=None, description="The YAML source, which keeps its comments.")
    source: str = Field(default="api", max_length=255, description="File that the text came from.")


class Edits(ConfigChangeBody):
    """Edits of single paths; concurrent changes of other paths are kept."""

    set: dict[str, Any] = Field(
        default_factory=dict,
        max_length=10_000,
        description="Path, such as Resources/Sites/LCG.CERN.ch/MaxRAM, to a value, a list or a section.",
    )
    remove: list[str] = Field(default_factory=list, max_length=10_000, description="Paths.")
    revert_after: float | None = Field(
        default=None,
        gt=0,
        le=bounds.SECONDS,
        description="Seconds until the values that were there before are restored, unless they are changed "
        "again; null: never.",
    )


class Proposed(NewConfig, Edits):
    """A change to preview: edits of single paths, or a whole configuration."""


class DifferenceAnswer(BaseModel):
    """A path that differs between two versions; a section that only one has is one path."""

    path: str
    change: str = Field(description="added, removed or changed")
    before: Any = Field(default=None, description="Absent if there was no value.")
    after: Any = Field(default=None, description="Absent if there is no value.")


class WarningPreview(AnswerModel):
    """A setting that is allowed and probably a mistake."""

    path: str
    message: str
    suggestion: str | None = Field(default=None, description="The name probably meant.")
    line: int | None = Field(default=None, description="Line in the new text.")


class NewVersion(BaseModel):
    """The version now in force."""

    version: int
    warnings: list[WarningPreview] = Field(default=[], description="The first of the new warnings.")
    more_warnings: int = Field(default=0, description="Number of further new warnings.")


class ChangedConfig(NewVersion):
    """The version now in force and its changes."""

    changes: list[DifferenceAnswer] = Field(description="Empty: nothing was stored.")
    reverts_at: datetime | None = Field(
        default=None, description="Time at which the values of a temporary change are restored."
    )


class Rollback(StrictInput):
    """The version to restore."""

    version: int = Field(ge=1, le=2**31 - 1)
    message: str = Field(default="", max_length=2000, description="Why.")


class Versions(BaseModel):
    """The latest versions, newest first."""

    versions: list[HistoryEntry]


class TemporaryValue(BaseModel):
    """A value that an agent will revert; of values of a path within one another each is one."""

    path: str
    value: Any = Field(
        default=None,
        description="Value in force until then, or from the end of the one within it on; absent: there is "
        "none.",
    )
    restored: Any = Field(
        default=None, description="Value in force from then on; absent: there will be none."
    )
    reverts_at: datetime
    version: int = Field(description="That made the change.")
    author: str
    problem: str = Field(description="Why it could not be restored yet; empty: nothing is wrong.")


class TemporaryValues(BaseModel):
    """The values that an agent will revert, the next first."""

    values: list[TemporaryValue]


class Since(AnswerModel):
    """The version that last changed a value."""

    version: int
    author: str
    stored_at: datetime = Field(validation_alias="created_at")
    source: str = Field(description="File that the version came from, or `api`.")


_EXCLUDES = (
    "For a queue's parameters; null for other values. Of very many or long requirements those with the most"
    " jobs are counted."
)


class BlamedValue(AnswerModel):
    """A value, its origin, its author, and the jobs that it excludes."""

    path: str = Field(
        validation_alias=AliasPath("line", "path"), description="Relative to the requested path."
    )
    value: Any = Field(validation_alias=AliasPath("line", "value"))
    origin: str = Field(validation_alias=AliasPath("line", "origin"), description="Level, file and line.")
    places: list[str] = Field(
        validation_alias=AliasPath("line", "places"), description="Full paths where it is written."
    )
    since: Since | None = Field(
        description="The version that wrote it; null: a default that is not written in the configuration."
    )
    excludes: ParameterImpact | None = Field(description=_EXCLUDES)


class BlameAnswer(BaseModel):
    """Values with their origin."""

    config_version: int
    values: list[BlamedValue]


class DifferencesAnswer(BaseModel):
    """The differences between two versions that the caller may see."""

    from_version: int
    to_version: int
    changes: list[DifferenceAnswer]


class PoolPreview(BaseModel):
    """A pool that gains or loses queues; long lists of queues are cut."""

    pool: str
    vo: str
    waiting: int = Field(description="Waiting jobs.")
    gains: int
    gained: list[str]
    loses: int
    lost: list[str]
    without_queue: bool = Field(description="No queue is left.")


class ClassPreview(BaseModel):
    """Waiting jobs with equal requirements that become stuck or free."""

    vo: str
    jobs: int
    example_job: int | None = Field(
        description="Id of one of these jobs; null: it is of a VO that the caller may not read about."
    )
    becomes: str = Field(description="stuck or freed")
    queues: list[str] = Field(description="The first of the queues lost or gained.")


class PreviewAnswer(BaseModel):
    """Effects that a change would have now; lists are cut, `totals` has the full numbers."""

    version: int = Field(description="Version in force now.")
    changes: list[DifferenceAnswer]
    warnings: list[WarningPreview] = Field(description="New warnings.")
    more_warnings: int = Field(default=0, description="Number of further new warnings.")
    totals: dict[str, int] = Field(description="Numbers that guards can test.")
    new_queues: list[str]
    removed_queues: list[str]
    jobs: Mapping[str, VoJobs] = Field(description="Numbers of jobs by VO.")
    classes: list[ClassPreview]
    pools: list[PoolPreview]
    running: list[LostWork]
    closed: list[ClosedPlace]
    floors: list[LoweredFloor] = Field(default=[], description="Floors that VOs would lose, or have less of.")
    temporary: list[TemporaryValue] = Field(
        default=[],
        description="Temporary values that it changes: unless it is temporary, too (`revert_after`), what "
        "was before them does not come back.",
    )
    order: list[TypeShift] = Field(default=[], description="Types of jobs that come earlier or later.")
    in_vain: list[UselessParameter]
    left_out: Mapping[str, WaitingWork] = Field(
        description="Jobs of many or long requirements for which nothing was computed, by VO."
    )


class OriginValue(BaseModel):
    """A value and its origin."""

    path: str = Field(description="Relative to the requested path.")
    value: Any
    origin: str = Field(description="Level, file and line.")


class ValuesAnswer(BaseModel):
    """Values with their origin, in the order of the configuration."""

    config_version: int
    values: list[OriginValue]
    next: int | None = Field(description="The `after` of the next page; null: this was the last.")
