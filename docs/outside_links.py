"""For the site: links that lead out of the documents name the file of the repository instead."""

import re
from typing import Any

_OUTSIDE = re.compile(
    r"\[([^]]+)\]\((?:\.\./)+((?:deploy|examples|tests)/[^)\s]*|[A-Z]+\.md[^)\s]*|CODEOWNERS)\)"
)


def on_page_markdown(markdown: str, *, page: Any, **_others: object) -> str:
    """Replace the links of a page; called by MkDocs."""
    depth = page.file.src_uri.count("/")

    def replace(found: re.Match[str]) -> str:
        above = found[0].count("../")
        return f"{found[1]} (`{found[2].partition('#')[0]}`)" if above > depth else found[0]

    return _OUTSIDE.sub(replace, markdown)
