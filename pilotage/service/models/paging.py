"""Shared shapes: pages of lists, errors, stored archives."""

from collections.abc import Sequence
from typing import Any, TypeVar

from pydantic import BaseModel, Field

Entry = TypeVar("Entry")

#: Entries in one answer.
MOST = 1000


class ListPage(BaseModel):
    """Size of a page."""

    limit: int = Field(default=100, ge=1, le=MOST, description="Most entries in the answer.")

    @property
    def enough(self) -> int:
        """Entries to look for: one more than the page shows whether the list goes on."""
        return self.limit + 1

    def cut(self, found: Sequence[Entry]) -> tuple[Sequence[Entry], Entry | None]:
        """The entries of the page, and the last of them if the list goes on."""
        page = found[: self.limit]
        return page, page[-1] if len(found) > self.limit else None


class ErrorContent(BaseModel):
    """Description of an error."""

    code: str = Field(description="Stable word for machines, such as `job_not_found` or `stale_lease`.")
    message: str = Field(description="For people: what is wrong, where, and what would be right.")
    details: dict[str, Any] = Field(
        description="Facts for machines; `problems` lists all faults of the input."
    )


class ErrorAnswer(BaseModel):
    """The body of every answer with status 400 or higher."""

    error: ErrorContent


class Stored(BaseModel):
    """A stored input sandbox."""

    sandbox: str = Field(description="`sha256:<digest>`, to name in submissions.")
