"""Plug-ins import what `docs/developer/plugins.md` lists, and not each other."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

PROJECT = Path(__file__).parents[2]
PAGE = PROJECT / "docs" / "developer" / "plugins.md"
PLUGINS = PROJECT / "pilotage" / "plugins"
PACKAGES = ("agents", "cs_config", "matcher", "optimizers", "pilotage", "requirements", "taskqueue")


def list_imports(file: Path) -> Iterator[str]:
    """The modules of the project that a file imports."""
    for node in ast.walk(ast.parse(file.read_text())):
        if isinstance(node, ast.ImportFrom) and node.module and node.module.split(".")[0] in PACKAGES:
            for each in node.names:
                path = PROJECT.joinpath(*node.module.split("."), each.name)
                is_module = path.is_dir() or path.with_suffix(".py").exists()
                yield f"{node.module}.{each.name}" if is_module else node.module


def test_plugins_import_the_listed_modules() -> None:
    table = PAGE.read_text().partition("| package | modules |\n")[2]
    listed = {
        f"{package}.{module}"
        for package, *modules in (re.findall(r"`([\w.]+)`", line) for line in table.splitlines()[1:])
        for module in modules
    }
    found = {each for file in PLUGINS.rglob("*.py") for each in list_imports(file)}
    assert {each for each in found if not each.startswith("pilotage.plugins")} == listed


def test_a_plugin_imports_no_other_but_where_the_error_is_told() -> None:
    others = {
        (plugin.name, each)
        for plugin in PLUGINS.iterdir()
        for file in plugin.rglob("*.py")
        for each in list_imports(file)
        if each.startswith("pilotage.plugins.") and each.split(".")[2] != plugin.name
    }
    # DIRAC's own protocol, for an import from its server: without the door it is refused with a message.
    assert others == {("formats", "pilotage.plugins.dirac.former")}
