"""The writer of cgroup files, on directories laid out as delegation gives them."""

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from pilotage.fabric.pilot.node import cgroup
from pilotage.fabric.pilot.node.cgroup import Delegation, NotDelegated

#: What processes of ours may be in the cgroup of a slot: the pilot, and the shell that started it.
OURS = [os.getpid(), os.getppid()]


def lay_out(root: Path) -> Path:
    """A host whose batch system delegates the cgroup of the slot; the cgroup."""
    (root / "proc/self").mkdir(parents=True)
    (root / "proc/self/cgroup").write_text("1:name=systemd:/x\n0::/system.slice/slot\n")
    top = root / "sys/fs/cgroup/system.slice/slot"
    top.mkdir(parents=True)
    (top / "cgroup.controllers").write_text("cpu memory pids\n")
    (top / "cgroup.procs").write_text("".join(f"{pid}\n" for pid in OURS))
    (top / "cgroup.subtree_control").write_text("")
    return top


def test_the_pilot_moves_aside_and_hands_the_controller_on(tmp_path: Path) -> None:
    top = lay_out(tmp_path)
    assert cgroup.take_delegated(tmp_path).top == top
    assert (top / "cgroup.subtree_control").read_text() == "+memory\n"
    # Each is written by itself; of a real cgroup the file would have all of them.
    assert (top / "pilotage-pilot/cgroup.procs").read_text() == f"{OURS[-1]}\n"


def test_a_payload_gets_a_cgroup_with_its_limit(tmp_path: Path) -> None:
    group = Delegation(tmp_path).limit_memory("job-17-1", 3072 << 20)
    directory = tmp_path / "job-17-1"
    assert (directory / "memory.max").read_text() == f"{3072 << 20}\n"
    assert (directory / "memory.oom.group").read_text() == "1\n"
    assert not (directory / "memory.swap.max").exists(), "this kernel has none"
    assert group.members == str(directory / "cgroup.procs")
    assert (group.peak, group.is_out_of_memory, group.is_victim) == (None, False, False)


def test_its_cgroup_is_removed_with_those_that_the_payload_made_in_it(tmp_path: Path) -> None:
    directory = tmp_path / "job-17-1"
    (directory / "a/b").mkdir(parents=True)
    cgroup.MemoryGroup(directory).remove()
    assert not directory.exists()
    cgroup.MemoryGroup(directory).remove()


@pytest.mark.parametrize(
    ("change", "why"),
    [
        (lambda top: (top / "cgroup.controllers").write_text("cpu pids"), "cpu, pids, without memory"),
        (lambda top: (top / "cgroup.controllers").unlink(), "are none, without memory"),
        (lambda top: (top / "cgroup.procs").write_text("0\n"), "processes of others, such as 0"),
        (lambda top: (top / "pilotage-pilot").write_text(""), "File exists"),
        (lambda top: (top / "cgroup.procs").unlink(), "cgroup.procs is not writable"),
    ],
)
def test_a_cgroup_that_is_not_ours_is_left_alone(
    tmp_path: Path, change: Callable[[Path], object], why: str
) -> None:
    change(top := lay_out(tmp_path))
    with pytest.raises(NotDelegated, match=why):
        cgroup.take_delegated(tmp_path)
    assert (top / "cgroup.subtree_control").read_text() == ""


def test_a_host_with_version_1_alone_has_none(tmp_path: Path) -> None:
    with pytest.raises(NotDelegated, match="version 2"):
        cgroup.take_delegated(tmp_path)
