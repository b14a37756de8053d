"""Commands in pages, which readers copy to a terminal: no name of a user is run by their shell."""

import re
import shlex
from pathlib import Path

from pilotage.service.pages import templating

_TEMPLATES = Path(templating.__file__).parent / "templates"
_COMMAND = re.compile(r"<code>pilotage.*?</code>")
_FILLED = re.compile(r"\{\{(.*?)\}\}")
#: Values that no user chooses: a verb of ours, a digest.
_SAFE = {"change.do", "pool.pool_id[:12]"}


def test_a_quoted_name_is_one_word() -> None:
    for name in ("production-7", "a'; touch taken; echo '", "$(touch taken)", "two\nlines", ""):
        assert shlex.split(f"--group {templating.quoted(name)}") == ["--group", name]


def test_names_in_commands_are_quoted() -> None:
    filled = [
        value.strip()
        for template in sorted(_TEMPLATES.rglob("*.html"))
        for command in _COMMAND.findall(template.read_text(encoding="utf-8"))
        for value in _FILLED.findall(command)
    ]
    assert "each.job_group | quoted" in filled
    assert [value for value in filled if not value.endswith("| quoted") and value not in _SAFE] == []
