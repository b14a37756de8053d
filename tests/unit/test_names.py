"""Names of the source: a public class name once in the project, and no word that the glossary bans."""

import ast
import re
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

import pytest

PROJECT = Path(__file__).parents[2]
GLOSSARY = PROJECT / "docs" / "developer" / "glossary.md"
PACKAGES = ("agents", "cs_config", "matcher", "optimizers", "pilotage", "requirements", "taskqueue")
#: Programs that run on nodes: they import nothing of ours, so their classes count apart.
ON_NODES = ("pilotage/fabric/pilot/", "pilotage/fabric/runner/")
_WORD = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+")


def sources() -> Iterator[Path]:
    """The modules of the project, without the steps of the migrations: those are named by their dates."""
    for package in PACKAGES:
        for path in sorted((PROJECT / package).rglob("*.py")):
            if not path.match("taskqueue/migrations/versions/*"):
                yield path.relative_to(PROJECT)


def definitions(path: Path) -> Iterator[ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef]:
    """The public classes and functions of a module, methods included; not those within functions."""
    new = list[ast.stmt](ast.parse((PROJECT / path).read_text()).body)
    while new:
        node = new.pop()
        if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            if not node.name.startswith("_"):
                yield node
            new += node.body if isinstance(node, ast.ClassDef) else []


def words(name: str) -> frozenset[str]:
    """The words of a name, split at underscores and capitals.

    >>> sorted(words("NoMatchCache"))
    ['cache', 'match', 'no']
    """
    return frozenset(word.lower() for word in _WORD.findall(name))


def banned() -> frozenset[str]:
    """The words of the left column of the glossary's last table."""
    table = GLOSSARY.read_text().partition("## Words that are not used")[2]
    rows = re.findall(r"^\| ([a-z, ]+) \| ", table, re.MULTILINE)
    return frozenset(word.strip() for row in rows for word in row.split(",")) - {"not"}


def test_the_glossary_bans_words() -> None:
    assert {"urn", "doorkeeper", "bell", "mould", "twins", "station"} <= banned()


@pytest.mark.parametrize("on_nodes", [False, True], ids=["service and sites", "on nodes"])
def test_a_public_class_name_is_used_once(on_nodes: bool) -> None:
    found = defaultdict[str, list[str]](list)
    for path in sources():
        if str(path).startswith(ON_NODES) == on_nodes:
            for node in definitions(path):
                if isinstance(node, ast.ClassDef):
                    found[node.name].append(str(path))
    assert {name: paths for name, paths in found.items() if len(paths) > 1} == {}


def test_no_public_name_contains_a_banned_word() -> None:
    never = banned()
    found = [str(path) for path in sources() if words(path.parent.name) & never or words(path.stem) & never]
    found += [
        f"{path}: {node.name}" for path in sources() for node in definitions(path) if words(node.name) & never
    ]
    assert found == []
