"""The one shape of errors."""

from typing import Any

from pydantic import BaseModel, Field


class ErrorContent(BaseModel):
    """What went wrong."""

    code: str = Field(description="Stable word for machines, such as `job_not_found` or `stale_lease`.")
    message: str = Field(description="For people: what, which one, what was seen, what would be right.")
    details: dict[str, Any] = Field(description="Facts for machines; `problems` lists all that is wrong.")


class ErrorAnswer(BaseModel):
    """The body of every answer from 400 on."""

    error: ErrorContent
