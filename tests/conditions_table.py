"""The table of matching conditions in the documentation: `python -m tests.conditions_table` writes it."""

import re
from pathlib import Path

from matcher.conditions import CONDITIONS, Condition

PAGE = Path(__file__).parents[1] / "docs" / "user" / "why-not.md"
_PART = re.compile(r"(<!-- conditions -->\n).*?(<!-- conditions end -->)", re.DOTALL)


def render() -> str:
    """The table, a row for each condition."""
    lines = [
        "| keyword of the job | a resource runs it only if | parameters of queues | a queue then has to |"
    ]
    return "\n".join([*lines, "|---|---|---|---|", *map(_render_row, CONDITIONS)]) + "\n"


def _render_row(condition: Condition) -> str:
    changes = (each.change for each in condition.demands if each.change is not None)
    cells = (
        ", ".join(f"`{each.keyword}`" for each in condition.demands),
        condition.meaning,
        ", ".join(f"`{name}`" for name in condition.parameters),
        "; ".join(change.format(names="…", number="…") for change in changes),
    )
    return f"| {' | '.join(cells)} |"


def fill(page: str) -> str:
    """The page with the table of now."""
    return _PART.sub(lambda found: found[1] + render() + found[2], page)


if __name__ == "__main__":
    PAGE.write_text(fill(PAGE.read_text()))
