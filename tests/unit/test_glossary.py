"""The modules and functions that the documentation for developers names exist."""

import ast
import re
from pathlib import Path

import pytest

from tests.support.left_out import needs_every_plugin

PROJECT = Path(__file__).parents[2]
GLOSSARY = PROJECT / "docs" / "developer" / "glossary.md"
PACKAGES = "agents|cs_config|matcher|optimizers|pilotage|requirements|taskqueue"
#: A path in code quotes; with a capital in it, it is not of the source.
_PATH = re.compile(rf"`((?:{PACKAGES}|tests)/[a-z0-9_./]*)`")
_MODULE = re.compile(rf"`((?:{PACKAGES})(?:\.[a-z0-9_]+)+)`")
#: A module of the glossary with the names in it, in brackets.
_NAMED = re.compile(rf"`((?:{PACKAGES})/[a-z0-9_./]*\.py)` \(((?:`[\w.]+`(?:, )?)+)")
#: Not modules: loggers, entry point groups, files and hosts of the examples.
_OTHERS = re.compile(
    r"pilotage\.(audit|batch|db|formats|service|job_types|optimizers|replica_catalogues|yaml|example\.org)$"
)
PAGES = [PROJECT / "README.md", *sorted((PROJECT / "docs").rglob("*.md"))]


def _is_there(path: str) -> bool:
    return (PROJECT / path).exists()


def _is_module(name: str) -> bool:
    """Whether a dotted name is a module, or something in one."""
    path = name.replace(".", "/")
    parent = path.rpartition("/")[0]
    return any(_is_there(each) for each in (path, f"{path}.py", f"{parent}.py"))


def test_each_row_of_the_glossary_names_a_module() -> None:
    text = GLOSSARY.read_text().partition("## Words that are not used")[0]
    rows = [row for row in text.splitlines() if row.startswith("| ") and not row.startswith("| word ")]
    assert len(rows) > 80
    assert [row for row in rows if not _PATH.findall(row)] == []


def test_words_of_the_glossary_are_defined_once() -> None:
    for title in ("## Nouns", "## Rules", "## Mechanisms"):
        section = GLOSSARY.read_text().partition(title)[2].partition("\n## ")[0]
        words = re.findall(r"^\| ([^|]+) \|", section, re.MULTILINE)
        assert len(words) > 20
        assert len(words) == len(set(words))


def _list_defined(file: Path) -> set[str]:
    """The names that a module defines, those of classes with their attributes."""
    found: set[str] = set()
    for node in ast.parse(file.read_text()).body:
        if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            found.add(node.name)
        if isinstance(node, ast.ClassDef):
            own = (each for each in node.body if isinstance(each, ast.FunctionDef | ast.AsyncFunctionDef))
            fields = (each.target for each in node.body if isinstance(each, ast.AnnAssign))
            found |= {f"{node.name}.{each.name}" for each in own}
            found |= {f"{node.name}.{each.id}" for each in fields if isinstance(each, ast.Name)}
        targets = node.targets if isinstance(node, ast.Assign) else [getattr(node, "target", None)]
        found |= {each.id for each in targets if isinstance(each, ast.Name)}
    return found


@needs_every_plugin
def test_functions_that_the_glossary_names_exist() -> None:
    named = _NAMED.findall(GLOSSARY.read_text())
    assert len(named) > 100
    unknown = [
        f"{path}: {name}"
        for path, names in named
        for name in re.findall(r"[\w.]+", names)
        if name not in _list_defined(PROJECT / path)
    ]
    assert unknown == []


@needs_every_plugin
@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(PROJECT)))
def test_modules_that_a_page_names_exist(page: Path) -> None:
    text = page.read_text()
    modules = [name for name in _MODULE.findall(text) if not _OTHERS.match(name)]
    assert [path for path in _PATH.findall(text) if not _is_there(path)] == []
    assert [name for name in modules if not _is_module(name)] == []


def test_hops_of_the_walks_exist() -> None:
    """Each name is defined: that it occurs somewhere, in a comment or a message, is not enough."""
    words = set(re.findall(r"`([\w./]+)`", (PROJECT / "docs" / "developer" / "walks.md").read_text()))
    sources = [
        path
        for package in PACKAGES.split("|")
        for path in (PROJECT / package).rglob("*")
        if path.suffix in (".py", ".sql")
    ]
    files = {word for word in words if word.endswith((".py", ".sql"))}
    assert [file for file in files if not any(f"{path}".endswith(f"/{file}") for path in sources)] == []
    definition = re.compile(r"\b(?:def|class|TRIGGER) (\w+)|^ *(\w+)(?:: \S.*| = .*)$", re.MULTILINE)
    defined = {name for path in sources for found in definition.findall(path.read_text()) for name in found}
    modules = {path.stem for path in sources}
    names = {part for word in words - files if "/" not in word for part in word.split(".")}
    assert sorted(names - defined - modules) == []
