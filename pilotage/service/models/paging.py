"""Pages of a list.

The one shape of errors.

Archives on the wire.
"""

from collections.abc import Sequence
from typing import Any, TypeVar

from pydantic import BaseModel, Field

Entry = TypeVar("Entry")

#: Entries in one answer.
MOST = 1000


class ListPage(BaseModel):
    """Which part of a list."""

    limit: int = Field(default=100, ge=1, le=MOST, description="Entries in the answer at most.")

    @property
    def enough(self) -> int:
        """How many entries to look for: one more than are answered says that the list goes on."""
        return self.limit + 1

    def cut(self, found: Sequence[Entry]) -> tuple[Sequence[Entry], Entry | None]:
        """The entries to answer, and the last of them if the list goes on behind it."""
        page = found[: self.limit]
        return page, page[-1] if len(found) > self.limit else None


class ErrorContent(BaseModel):
    """What went wrong."""

    code: str = Field(description="Stable word for machines, such as `job_not_found` or `stale_lease`.")
    message: str = Field(description="For people: what, which one, what was seen, what would be right.")
    details: dict[str, Any] = Field(description="Facts for machines; `problems` lists all that is wrong.")


class ErrorAnswer(BaseModel):
    """The body of every answer from 400 on."""

    error: ErrorContent


class Stored(BaseModel):
    """An input sandbox that was stored."""

    sandbox: str = Field(description="`sha256:<digest>`, to be named when jobs are submitted.")
