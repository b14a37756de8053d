"""The table of matching conditions in the documentation.

`python -m tests.support.documents.conditions_table` writes it.
"""

import re
from pathlib import Path

from docs.reference import generate

PAGE = Path(__file__).parents[3] / "docs" / "user" / "why-not.md"
_PART = re.compile(r"(<!-- conditions -->\n).*?(<!-- conditions end -->)", re.DOTALL)


def fill(page: str) -> str:
    """The page with the table of now."""
    return _PART.sub(lambda found: found[1] + generate.table_of_conditions() + found[2], page)


if __name__ == "__main__":
    PAGE.write_text(fill(PAGE.read_text()))
