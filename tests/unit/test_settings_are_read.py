"""Every name of the files of directors and gateways, of the settings and of options of VOs is read.

A name that is accepted and documented, and that nothing reads, changes nothing: whoever writes it is misled.
Read is an attribute of that name, other than in what only checks a value. Parameters of the tree:
`test_parameters_are_read`.
"""

import ast
from collections.abc import Iterator
from functools import cache
from importlib import import_module

import pytest
from pydantic import BaseModel

from tests.conftest import ROOT

PACKAGES = ("agents", "cs_config", "matcher", "optimizers", "pilotage", "requirements", "taskqueue")
#: Modules whose models are files and sections of files; those of answers over HTTP are elsewhere.
MODULES = (
    "cs_config.options.options",
    "cs_config.tree.throttle",
    "pilotage.cli.settings",
    "pilotage.fabric.batch.htcondor",
    "pilotage.fabric.batch.local_host",
    "pilotage.fabric.batch.settings",
    "pilotage.fabric.director.configuration",
    "pilotage.fabric.director.targets",
    "pilotage.fabric.gateway.configuration",
    "pilotage.fabric.manager.context",
    "pilotage.fabric.manager.job_types",
)
#: Read by a walk over all fields, whose names have this prefix, and the module with it.
WALKS = {"max_": "cs_config.tree.throttle"}
_CHECKS = frozenset({"field_validator", "model_validator"})


def _list_fields() -> list[tuple[str, str, str]]:
    """Module, class and name of each field that is declared in one of the modules."""
    found = []
    for name in MODULES:
        for each in vars(import_module(name)).values():
            if isinstance(each, type) and issubclass(each, BaseModel) and each.__module__ == name:
                own = each.__annotations__.keys() & each.model_fields.keys()
                found += [(name, each.__name__, field) for field in sorted(own)]
    return found


@cache
def _find_read() -> frozenset[str]:
    return frozenset(
        name
        for package in PACKAGES
        for path in (ROOT / package).rglob("*.py")
        for name in _list_read(ast.parse(path.read_text(encoding="utf-8")))
    )


def _list_read(node: ast.AST) -> Iterator[str]:
    for each in ast.iter_child_nodes(node):
        if isinstance(each, ast.FunctionDef) and any(map(_is_check, each.decorator_list)):
            continue
        if isinstance(each, ast.Attribute) and isinstance(each.ctx, ast.Load):
            yield each.attr
        yield from _list_read(each)


def _is_check(decorator: ast.expr) -> bool:
    called = decorator.func if isinstance(decorator, ast.Call) else decorator
    return isinstance(called, ast.Name) and called.id in _CHECKS


def test_there_are_fields_of_every_module() -> None:
    assert {module for module, *_ in _list_fields()} == set(MODULES)


@pytest.mark.parametrize(("module", "model", "name"), _list_fields())
def test_a_name_that_may_be_written_is_read(module: str, model: str, name: str) -> None:
    is_walked = any(name.startswith(prefix) and module == of for prefix, of in WALKS.items())
    assert is_walked or name in _find_read(), f"{model}: nothing reads {name}"


def test_a_name_that_only_a_check_reads_is_not_read() -> None:
    text = "class A:\n @field_validator('b')\n def c(self): return self.b\n def d(self): return self.e\n"
    assert set(_list_read(ast.parse(text))) == {"e"}
