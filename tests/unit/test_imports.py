"""No module imports itself through others: contracts compare packages, which may import each other by `:`."""

import re
import tomllib
from graphlib import TopologicalSorter
from pathlib import Path

import grimp

PACKAGES = ("agents", "cs_config", "matcher", "optimizers", "pilotage", "requirements", "taskqueue")


def test_no_modules_import_each_other_in_a_circle() -> None:
    """Also not where an import stands in a function: `TopologicalSorter` names the modules of a circle."""
    graph = grimp.build_graph(*PACKAGES, cache_dir=None)
    imports = {each: graph.find_modules_directly_imported_by(each) for each in graph.modules}
    assert len(imports) > 400
    TopologicalSorter(imports).prepare()


def test_of_a_package_that_lies_in_several_layers_every_module_is_in_one() -> None:
    graph = grimp.build_graph(*PACKAGES, cache_dir=None)
    project = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text(encoding="utf-8"))
    contracts = [each for each in project["tool"]["importlinter"]["contracts"] if each["type"] == "layers"]
    split = 0
    for contract in contracts:
        layers = {name.strip() for layer in contract["layers"] for name in re.split("[|:]", layer)}
        for container in contract.get("containers", ()):
            for package in {name.rpartition(".")[0] for name in layers if "." in name}:
                found = graph.find_children(f"{container}.{package}")
                assert {each.removeprefix(f"{container}.") for each in found} <= layers
                split += 1
    assert split >= 5
