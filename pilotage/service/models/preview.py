"""What a change of the configuration would do, on the wire."""

from pydantic import BaseModel, Field

from pilotage.service.models.config import DifferenceAnswer


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
