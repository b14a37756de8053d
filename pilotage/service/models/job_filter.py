"""Which jobs, as queries and bodies say it."""

from typing import Annotated

from fastapi import Path
from pydantic import BaseModel, BeforeValidator, ConfigDict, Field

from pilotage.service.models.paging import Page
from taskqueue.states import JobStatus

#: Values of one condition.
MOST = 1000
MAX_ID = 2**63 - 1

#: In the path of a request.
JobIdPath = Annotated[int, Path(ge=1, le=MAX_ID)]
JobId = Annotated[int, Field(ge=1, le=MAX_ID, strict=True)]


def words(value: object) -> object:
    """`a,b` as a list, also within a list: how queries say several values."""
    if isinstance(value, str):
        value = [value]
    if not isinstance(value, list):
        return value
    split = [each.split(",") if isinstance(each, str) else [each] for each in value]
    return [
        word.strip() if isinstance(word, str) else word for words in split for word in words if word != ""
    ]


def _ids(value: object) -> object:
    said = words(value)
    if not isinstance(said, list):
        return said
    return [int(word) if isinstance(word, str) and _is_id(word) else word for word in said]


def _is_id(word: str) -> bool:
    return word.isascii() and word.isdigit() and len(word) <= len(str(MAX_ID))


_Most = Field(max_length=MOST)
Words = Annotated[Annotated[list[str], _Most] | None, BeforeValidator(words)]
Statuses = Annotated[Annotated[list[JobStatus], _Most] | None, BeforeValidator(words)]
JobIds = Annotated[Annotated[list[JobId], _Most] | None, BeforeValidator(_ids)]


class JobFilter(BaseModel):
    """Which jobs; several values, separated by commas, mean any of them."""

    model_config = ConfigDict(extra="forbid")

    ids: JobIds = Field(default=None, description="Job ids.")
    status: Statuses = None
    vo: Words = None
    owner: str | None = None
    owner_group: str | None = None
    site: Words = None
    pool: str | None = Field(default=None, description="Id of the SubmitPool.")
    minor_status: str | None = None
    job_name: str | None = None
    job_type: str | None = None
    job_group: str | None = None

    @property
    def is_empty(self) -> bool:
        """Whether it names no condition."""
        return not any(getattr(self, name) for name in JobFilter.model_fields)


class JobQuery(JobFilter, Page):
    """The filter and the page of a list of jobs."""

    id: JobIds = Field(default=None, description="Job ids, separated by commas; `ids` means the same.")
    after: int | None = Field(default=None, ge=1, le=MAX_ID, description="`next` of the page before.")

    @property
    def filter(self) -> JobFilter:
        """What it asks of the jobs."""
        return self.model_copy(update={"ids": self.id if self.ids is None else self.ids})


class SummaryQuery(JobFilter):
    """By which columns to count, and which jobs."""

    by: str = Field(default="status", description="Columns, separated by commas.")
