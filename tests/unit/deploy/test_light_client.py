"""The list of files of `pilotage-client` is complete."""

import ast
import tomllib
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[3]
PROJECT = tomllib.loads((ROOT / "packages/client/pyproject.toml").read_text())
OURS = {"agents", "cs_config", "matcher", "optimizers", "pilotage", "requirements", "taskqueue"}


def list_files() -> Iterator[Path]:
    for name in PROJECT["tool"]["hatch"]["build"]["targets"]["wheel"]["force-include"].values():
        yield from (ROOT / name).rglob("*.py") if (ROOT / name).is_dir() else [ROOT / name]


def name_imports(file: Path) -> Iterator[str]:
    """The modules that one imports when it is imported; of `output.py` also what its functions import."""
    tree = ast.parse(file.read_text())
    for node in ast.walk(tree) if file.name == "output.py" else tree.body:
        if isinstance(node, ast.ImportFrom):
            yield str(node.module)
            names = (f"{node.module}.{each.name}" for each in node.names)
            yield from (name for name in names if find_module(name) is not None)
        elif isinstance(node, ast.Import):
            yield from (each.name for each in node.names)


def find_module(name: str) -> Path | None:
    """The file of a module; None: it is something in a module."""
    path = ROOT / name.replace(".", "/")
    return next(filter(Path.is_file, (path.with_suffix(".py"), path / "__init__.py")), None)


def test_each_module_of_ours_that_the_light_client_imports_is_in_it() -> None:
    files = set(list_files())
    wanted = {name for file in files if file.suffix == ".py" for name in name_imports(file)}
    paths = [ROOT / name.replace(".", "/") for name in wanted if name.partition(".")[0] in OURS]
    missing = [path for path in paths if not {path.with_suffix(".py"), path / "__init__.py"} & files]
    assert missing == []
