"""Pages of a list."""

from pydantic import BaseModel, Field

#: Entries in one answer.
MOST = 1000


class Page(BaseModel):
    """Which part of a list."""

    limit: int = Field(default=100, ge=1, le=MOST, description="Entries in the answer at most.")
