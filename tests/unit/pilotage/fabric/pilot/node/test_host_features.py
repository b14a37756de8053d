"""Tags that a pilot states of its host: what the kernel allows, and mounted repositories."""

import os
from pathlib import Path

import pytest

from pilotage.fabric.pilot.node import host_features

MOUNTS = """\
overlay / overlay rw 0 0
cvmfs2 /cvmfs/lhcb.cern.ch fuse ro,nosuid 0 0
/dev/fuse /cvmfs/cvmfs-config.cern.ch fuse ro 0 0
/etc/auto.cvmfs /cvmfs autofs rw 0 0
server:/x /cvmfs/nfs.example.org nfs4 ro 0 0
cvmfs2 /cvmfs/atlas.cern.ch/below fuse ro 0 0
short
"""


@pytest.fixture
def root(tmp_path: Path) -> Path:
    (tmp_path / "proc/self").mkdir(parents=True)
    (tmp_path / "dev").mkdir()
    return tmp_path


def program(directory: Path, name: str, script: str) -> None:
    (directory / name).write_text(f"#!/bin/sh\n{script}\n")
    (directory / name).chmod(0o755)


def test_mounted_repositories_are_tags(root: Path) -> None:
    (root / "proc/self/mounts").write_text(MOUNTS)
    found = host_features.measure_tags({"PATH": "/nowhere"}, root)
    assert [tag for tag in found if tag.startswith("cvmfs:")] == [
        "cvmfs:cvmfs-config.cern.ch",
        "cvmfs:lhcb.cern.ch",
    ]


def test_fuse_overlayfs_needs_the_program_and_the_device(root: Path) -> None:
    def has() -> bool:
        return "hostfeat:fuse_overlayfs" in host_features.measure_tags({"PATH": str(root)}, root)

    assert not has()
    program(root, "fuse-overlayfs", "exit 0")
    assert not has()
    (root / "dev/fuse").touch()
    assert has()


@pytest.mark.parametrize(("capabilities", "has"), [("0000000000001000", True), ("00000000a80425fb", False)])
def test_net_admin_is_an_effective_capability(root: Path, capabilities: str, *, has: bool) -> None:
    (root / "proc/self/status").write_text(f"Name:\tx\nCapEff:\t{capabilities}\n")
    assert ("hostfeat:net_admin" in host_features.measure_tags({"PATH": "/nowhere"}, root)) is has


@pytest.mark.parametrize(
    ("script", "has"),
    [('shift 5; exec "$@"', True), ("echo no space >&2; exit 1", False), ("exec sleep 60", False)],
)
def test_nested_user_namespaces_are_tried(
    root: Path, monkeypatch: pytest.MonkeyPatch, script: str, *, has: bool
) -> None:
    monkeypatch.setattr(host_features, "_PATIENCE", 0.2 if "sleep" in script else 300.0)
    program(root, "unshare", script)
    monkeypatch.setenv("PATH", f"{root}:{os.environ['PATH']}")
    found = host_features.measure_tags({"PATH": f"{root}:{os.environ['PATH']}"}, root)
    assert ("hostfeat:nested_userns" in found) is has


def test_this_host_has_tags_with_reserved_prefixes_only() -> None:
    found = host_features.measure_tags({"PATH": os.environ["PATH"]})
    assert list(found) == sorted(found)
    assert all(tag.startswith(("hostfeat:", "cvmfs:")) for tag in found)
