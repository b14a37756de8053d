"""Pages of a list."""

from collections.abc import Sequence
from typing import TypeVar

from pydantic import BaseModel, Field

Entry = TypeVar("Entry")

#: Entries in one answer.
MOST = 1000


class Page(BaseModel):
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
