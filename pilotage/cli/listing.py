"""The first entries of a list that the service gives page by page, and what lies behind them."""

import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any

import typer
from rich.console import RenderableType

from pilotage.cli import output

#: Entries in one answer of the service.
PAGE = 1000

Limit = Annotated[int, typer.Option(min=1, help="At most so many.")]

Entry = Mapping[str, Any]
#: One page, from its greatest length and the `next` of the page before.
Page = Callable[[int, object], Mapping[str, Any]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Listing:
    """What was read of a list."""

    name: str  #: of the entries, as the service calls them
    entries: Sequence[Entry]
    next: object = None  #: goes into `--after` for what comes behind; None: nothing does
    total: int | None = None  #: entries of the whole list, where somebody counted them

    def emit(self, render: Callable[[Sequence[Entry]], RenderableType], *, as_json: bool) -> None:
        """Print it; whoever reads a table is told on standard error that it goes on."""
        data = {self.name: self.entries, "next": self.next}
        output.emit(data, as_json=as_json, render=lambda: render(self.entries))
        if self.next is not None and not as_json:
            sys.stderr.write(f"{self._shown()}; --limit shows more, --after {self.next} what comes next\n")

    def _shown(self) -> str:
        if self.total is None:
            return f"{len(self.entries):,} {self.name} shown, there are more"
        return f"{len(self.entries):,} of {self.total:,} {self.name} shown"


def read(name: str, page: Page, *, limit: int | None = None, after: object = None) -> Listing:
    """Read page after page.

    Args:
        name: Under which a page has its entries.
        page: Asks the service.
        limit: Entries at most; None: all.
        after: `next` of an earlier part.
    """
    found: list[Entry] = []
    while limit is None or len(found) < limit:
        answer = page(PAGE if limit is None else min(PAGE, limit - len(found)), after)
        found += answer[name]
        after = answer["next"]
        if after is None:
            break
    return Listing(name=name, entries=found, next=after)
