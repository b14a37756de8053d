"""Bodies of requests and answers that several modules share; the others stand beside their routes.

The descriptions appear in the OpenAPI document.
"""

from collections.abc import Sequence
from typing import Annotated, TypeAlias, TypeVar

from pydantic import BaseModel, ConfigDict, Field, StringConstraints

Entry = TypeVar("Entry")

#: Entries in one answer.
MOST = 1000

#: A text without blanks around it, and with something between them.
FilledText: TypeAlias = Annotated[str, StringConstraints(strip_whitespace=True, min_length=1)]


class StrictInput(BaseModel):
    """Input of a request; names that it does not have are refused."""

    model_config = ConfigDict(extra="forbid")


class AnswerModel(BaseModel):
    """An answer that is made of an object's attributes."""

    model_config = ConfigDict(from_attributes=True)


class ListPage(BaseModel):
    """Size of a page."""

    limit: int = Field(default=100, ge=1, le=MOST, description="Most entries in the answer.")

    @property
    def fetch_limit(self) -> int:
        """Entries to look for: one more than the page shows whether the list goes on."""
        return self.limit + 1

    def cut(self, found: Sequence[Entry]) -> tuple[Sequence[Entry], Entry | None]:
        """The entries of the page, and the last of them if the list goes on."""
        return found[: self.limit], found[self.limit - 1] if len(found) > self.limit else None
