"""Plug-ins whose folder was removed from this tree: their tests are left out, all others run."""

from pathlib import Path

import pytest

_PROJECT = Path(__file__).parents[2]
_PLUGINS = _PROJECT / "pilotage" / "plugins"
#: The shipped plug-ins, and the tests elsewhere that use one throughout: of its processes, or with its batch
#: systems that fail on purpose.
USERS = {
    "arc": (),
    "batch_check": (
        "integration/pilotage/fabric/batch/test_htcondor.py",
        "integration/pilotage/fabric/batch/test_ssh_shell.py",
        "integration/pilotage/fabric/director/test_director.py",
        "integration/pilotage/fabric/manager/test_manager.py",
        "plugins/arc/test_arc.py",
        "plugins/arc/test_arc_before_slurm.py",
        "plugins/kubernetes/test_jobs.py",
    ),
    "dirac": ("acceptance/test_dirac*.py", "acceptance/test_demo_on_dirac.py"),
    "formats": (),
    "kubernetes": (),
    "otel": (),
    "web_hooks": (),
}


def is_there(plugin: str) -> bool:
    """Whether this tree has the folder of a plug-in."""
    return (_PLUGINS / plugin / "__init__.py").exists()


def list_tests() -> list[str]:
    """Patterns of the tests of plug-ins that are absent, below `tests`."""
    absent = [name for name in USERS if not is_there(name)]
    return [pattern for name in absent for pattern in (f"plugins/{name}", *USERS[name])]


def needs(plugin: str) -> pytest.MarkDecorator:
    """Mark a test of something that a plug-in brings."""
    return pytest.mark.skipif(not is_there(plugin), reason=f"{plugin} was left out")


#: For tests that compare lists of the whole program, such as pages of the reference.
needs_every_plugin = pytest.mark.skipif(
    not all(map(is_there, USERS)), reason="a plug-in was left out, which has some of these names"
)
