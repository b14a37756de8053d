"""What jobs put into the place of their files, on this host and behind a real SSH server."""

import itertools
import os
import shutil
import socket
import subprocess
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest

from pilotage.fabric.batch.batch_system import BatchSystemAway
from pilotage.fabric.batch.shell import Completed, LocalShell, NoAnswer, Shell
from pilotage.fabric.batch.ssh_shell import SshShell
from pilotage.fabric.batch.work_area import StatusMarks, WorkAreas, wrapper
from tests.support.servers.ssh import SshServer

HOSTILE, HONEST = "test-hostile", "test-honest"


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SshServer]:
    server = SshServer(tmp_path_factory.mktemp("ssh"))
    server.start()
    yield server
    server.stop()


@pytest.fixture(params=["local", pytest.param("ssh", marks=pytest.mark.debian("ssh"))])
def shell(request: pytest.FixtureRequest) -> Iterator[Shell]:
    if request.param == "local":
        yield LocalShell()
    else:
        with closing(SshShell(request.getfixturevalue("server").host())) as remote:
            yield remote


@pytest.fixture
def areas(shell: Shell, tmp_path: Path) -> WorkAreas:
    for stamp in (HOSTILE, HONEST):
        (tmp_path / "jobs" / stamp).mkdir(parents=True)
    (tmp_path / "jobs" / HONEST / "exit").write_text("3\n")
    return WorkAreas(directory=str(tmp_path / "jobs"), shell=shell)


@pytest.fixture
def area(areas: WorkAreas) -> Path:
    """Of the hostile job."""
    return Path(areas.path(HOSTILE))


@pytest.fixture
def secret(tmp_path: Path) -> Path:
    """A file of the host that reads and writes in work areas."""
    file = tmp_path / "own" / "out"
    file.parent.mkdir()
    file.write_text("secret")
    return file


def make_socket(path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as listener:
        here = Path.cwd()
        os.chdir(path.parent)  # the name of a socket must be short
        try:
            listener.bind(path.name)
        finally:
            os.chdir(here)


BLOCKING: dict[str, Callable[[Path], object]] = {
    "pipe": os.mkfifo,
    "socket": make_socket,
    "directory": Path.mkdir,
    "device": lambda path: path.symlink_to("/dev/zero"),
    "protected": lambda path: (path.write_text("0\n"), path.chmod(0)) if os.geteuid() else os.mkfifo(path),
}


@pytest.mark.parametrize("name", ["out", "err"])
def test_output_is_not_read_through_a_link(areas: WorkAreas, area: Path, secret: Path, name: str) -> None:
    (area / name).symlink_to(secret)

    found = areas.output(HOSTILE)

    assert (found.stdout, found.stderr) == (b"", b"")


def test_nothing_is_read_through_a_link_in_the_place_of_the_work_area(
    areas: WorkAreas, area: Path, secret: Path
) -> None:
    (secret.parent / "exit").write_text("0\n")
    area.rmdir()
    area.symlink_to(secret.parent, target_is_directory=True)

    assert areas.output(HOSTILE).stdout == b""
    assert areas.marks([HOSTILE, HONEST]) == {HOSTILE: StatusMarks(), HONEST: StatusMarks(exit_code=3)}


def test_nothing_is_written_through_links(areas: WorkAreas, area: Path, secret: Path) -> None:
    for name in ("killed", "killed.new", "job.new", "wrapper.new"):
        (area / name).symlink_to(secret)

    areas.mark_killed([HOSTILE])

    assert secret.read_text() == "secret"
    assert areas.marks([HOSTILE])[HOSTILE].killed


def test_nothing_is_written_below_a_link(areas: WorkAreas, area: Path, secret: Path) -> None:
    area.rmdir()
    area.symlink_to(secret.parent, target_is_directory=True)

    areas.mark_killed([HOSTILE])
    with pytest.raises(BatchSystemAway, match="cannot be written"):
        areas.put(HOSTILE, "job", "#!/bin/sh\n")

    assert [path.name for path in secret.parent.iterdir()] == ["out"]


def test_a_job_cannot_keep_its_mark_of_being_killed_from_being_made(areas: WorkAreas, area: Path) -> None:
    (area / "killed" / "full").mkdir(parents=True)

    areas.mark_killed([HOSTILE])

    assert areas.marks([HOSTILE])[HOSTILE].killed


def test_a_kill_that_is_repeated_is_noted_once(areas: WorkAreas, tmp_path: Path) -> None:
    def inodes() -> set[int]:
        return {path.stat().st_ino for path in (tmp_path / "jobs").glob(".killed-*")}

    areas.mark_killed([HOSTILE])
    [first] = inodes()
    areas.mark_killed([HOSTILE, HONEST])  # a file that is written again is another one

    assert first in inodes()
    assert len(inodes()) == 2


@pytest.mark.parametrize("make", BLOCKING.values(), ids=BLOCKING)
@pytest.mark.parametrize("name", ["out", "exit"])
def test_what_is_no_file_keeps_nobody_waiting(
    areas: WorkAreas, area: Path, make: Callable[[Path], object], name: str
) -> None:
    make(area / name)

    assert areas.output(HOSTILE).stdout == b""
    assert areas.marks([HOSTILE, HONEST]) == {HOSTILE: StatusMarks(), HONEST: StatusMarks(exit_code=3)}


@pytest.mark.parametrize("text", ["9" * 6000, "-1", "256", "٣", "0" * 2_000_000, "\0", ""])
def test_an_exit_status_that_is_none_is_not_believed(areas: WorkAreas, area: Path, text: str) -> None:
    (area / "exit").write_text(text)

    assert areas.marks([HOSTILE, HONEST]) == {HOSTILE: StatusMarks(), HONEST: StatusMarks(exit_code=3)}


def test_removing_follows_no_link(areas: WorkAreas, area: Path, secret: Path) -> None:
    (area / "below").symlink_to(secret.parent, target_is_directory=True)
    areas.mark_killed([HOSTILE])

    areas.remove([HOSTILE])

    assert secret.read_text() == "secret"
    assert not area.exists()
    assert not areas.marks([HOSTILE])[HOSTILE].killed


def test_nothing_is_removed_below_a_link(areas: WorkAreas, area: Path, secret: Path) -> None:
    (secret.parent / HOSTILE).mkdir()
    areas.mark_killed([HOSTILE])
    for path in (area, *area.parent.glob("*kill*")):
        areas.shell.remove([path.name], below=areas.directory)
        path.symlink_to(secret.parent, target_is_directory=True)

    areas.remove([HOSTILE])

    assert {path.name for path in secret.parent.iterdir()} == {"out", HOSTILE}


def test_a_directory_that_cannot_be_read_is_not_taken_for_an_empty_one(
    areas: WorkAreas, tmp_path: Path
) -> None:
    (tmp_path / "file").write_text("")
    broken = WorkAreas(directory=str(tmp_path / "file"), shell=areas.shell)

    with pytest.raises(BatchSystemAway, match="cannot be read"):
        broken.marks([HONEST])


def test_a_file_is_written_where_work_areas_are_made_and_nothing_of_it_stays(
    areas: WorkAreas, tmp_path: Path
) -> None:
    for name in (".pilotage-check-0123456789", ".pilotage-check"):
        Path(areas.directory, name).touch()  # the first of a check that was killed
    areas.check()
    assert {path.name for path in Path(areas.directory).iterdir()} == {HOSTILE, HONEST, ".pilotage-check"}
    WorkAreas(directory=str(tmp_path / "not" / "yet"), shell=areas.shell).check()
    assert not (tmp_path / "not").exists(), "the account of the director makes it"

    (tmp_path / "file").write_text("")
    (tmp_path / "link").symlink_to(tmp_path / "not" / "mounted")
    for directory in (f"{tmp_path}/file", f"{tmp_path}/file/below", "/proc/self/none", f"{tmp_path}/link"):
        broken = WorkAreas(directory=directory, shell=areas.shell)
        with pytest.raises(BatchSystemAway, match=f"{directory}: a file cannot be written: "):
            broken.check()


def test_storage_that_hangs_is_reported_with_its_directory(tmp_path: Path) -> None:
    class Frozen(LocalShell):
        def run(self, _: Sequence[str], **__: object) -> Completed:
            return LocalShell.run(self, ["sleep", "600"], seconds=0.1)

    with pytest.raises(NoAnswer, match=f"{tmp_path}: a file cannot be written: sleep gave no answer"):
        WorkAreas(directory=str(tmp_path), shell=Frozen()).check()


def test_a_directory_that_is_reached_through_a_link_of_the_site_is_used(
    areas: WorkAreas, tmp_path: Path
) -> None:
    (tmp_path / "shared").symlink_to(areas.directory, target_is_directory=True)
    linked = WorkAreas(directory=str(tmp_path / "shared"), shell=areas.shell)

    assert linked.marks([HONEST])[HONEST].exit_code == 3


def test_directories_in_which_nothing_was_made_for_long_are_listed(areas: WorkAreas, tmp_path: Path) -> None:
    (tmp_path / "jobs" / "no stamp").mkdir()
    (tmp_path / "jobs" / "link-to-elsewhere").symlink_to(tmp_path)
    (tmp_path / "jobs" / "a-file-of-the-site").touch()
    for each in (tmp_path / "jobs").iterdir():
        if each.name != HOSTILE:
            os.utime(each, (0, 0), follow_symlinks=False)
    assert areas.list_old(86_400) == {HONEST}
    assert replace(areas, directory=str(tmp_path / "none")).list_old(86_400) == frozenset()


def run_with_signal(directory: Path, job: str, program: str, target: str, *, new_session: bool) -> str:
    """The mark of the end of a job during whose wrapper a program sends TERM to a target before its work."""
    area, programs = directory / "test-signalled", directory / "bin"
    for each in (area, programs):
        each.mkdir()
    (area / "job").write_text(f"#!/bin/sh\n{job}\n")
    (programs / program).write_text(
        f'#!/bin/sh\nkill -TERM {target}\nPATH="${{PATH#*:}}" exec {program} "$@"\n'
    )
    for script in (area / "job", programs / program):
        script.chmod(0o700)
    environment = {**os.environ, "PATH": f"{programs}:{os.environ['PATH']}"}
    command = ["sh", "-c", wrapper(str(area))]
    subprocess.run(command, env=environment, start_new_session=new_session, check=False)
    return (area / "exit").read_text()


def test_the_mark_of_the_end_is_made_though_a_signal_goes_to_all_processes_meanwhile(tmp_path: Path) -> None:
    assert run_with_signal(tmp_path, "exit 3", "mv", "0", new_session=True) == "3\n"


#: Called before each command of a traced script: at one of them all of its processes get the signal.
HOOK = """\
#!/bin/sh
trap '' {signal}
set -C
n=0
until true >"$2/$n"; do n=$((n + 1)); done 2>/dev/null
test "$n" -ne "$1" || kill -{signal} 0
"""


@pytest.mark.parametrize("signal", ["TERM", "USR2"])
@pytest.mark.parametrize("shell", ["dash", "bash"])
def test_a_job_that_started_leaves_the_mark_of_its_end_whenever_a_signal_comes(
    tmp_path: Path, shell: str, signal: str
) -> None:
    if shutil.which(shell) is None:
        pytest.skip(f"there is no {shell}")
    hook = tmp_path / "hook"
    hook.write_text(HOOK.format(signal=signal))
    hook.chmod(0o700)

    for at in itertools.count():
        area, calls = tmp_path / f"test-area-{at}", tmp_path / f"calls-{at}"
        for directory in (area, calls):
            directory.mkdir()
        (area / "job").write_text("#!/bin/sh\nexit 3\n")
        (area / "job").chmod(0o700)
        traced = f"PS4='$({hook} {at} {calls})'; set -x\n{wrapper(str(area))}"
        subprocess.run([shell, "-c", traced], start_new_session=True, stderr=subprocess.DEVNULL, check=False)

        assert (area / "exit").is_file() or not (area / "started").exists(), f"at command {at}"
        if not (calls / str(at)).exists():
            break


def test_a_signal_that_comes_before_its_job_is_passed_on_to_it(tmp_path: Path) -> None:
    assert run_with_signal(tmp_path, "exec sleep 600", "mkdir", "$PPID", new_session=False) == "143\n"


def run_wrapper(shell: str, area: Path, job: str, prelude: str) -> str:
    """The mark of the end of a job in whose wrapper functions stand for what is a matter of moments."""
    if shutil.which(shell) is None:
        pytest.skip(f"there is no {shell}")
    area.mkdir()
    (area / "job").write_text(f"#!/bin/sh\n{job}\n")
    (area / "job").chmod(0o700)
    subprocess.run([shell, "-c", f"{prelude}\n{wrapper(str(area))}"], check=False)
    return (area / "exit").read_text()


#: The shell of the job gets no signal before its first command, as between its fork and the reset of traps.
LOSES_SIGNAL = """\
test() {
    if [ "$1" != -e ]; then : >../waiting
    elif mkdir ../sent 2>/dev/null; then  # in the shell of the job: its first command
        until [ -e ../waiting ]; do sleep 0.01; done
        command kill -TERM $$
        until [ -e ../lost ]; do sleep 0.01; done
    fi
    [ "$@" ]
}
kill() { if [ "$1" = -0 ]; then command kill "$@"; else : >../lost; fi; }
"""
#: The wait ends by a signal at the moment at which the job ends.
ENDS_WITH_SIGNAL = """\
once=
wait() { command wait "$@"; set -- $?; test "$once" || set -- 143; once=1; return $1; }
"""


@pytest.mark.parametrize("shell", ["dash", "bash"])
def test_a_job_whose_shell_lost_a_signal_does_not_start(tmp_path: Path, shell: str) -> None:
    assert run_wrapper(shell, tmp_path / "test-lost", "exit 3", LOSES_SIGNAL) == "143\n"


@pytest.mark.parametrize("shell", ["dash", "bash"])
def test_the_mark_is_the_status_of_the_job_though_a_signal_comes_with_its_end(
    tmp_path: Path, shell: str
) -> None:
    assert run_wrapper(shell, tmp_path / "test-ended", "exit 9", ENDS_WITH_SIGNAL) == "9\n"
