"""Isolation of payloads from the pilot, each other and the host, by a wrapper command before the payload's.

With `userns` (util-linux) a payload sees its own processes only, and no directories of others. There are two
nested user namespaces: in the outer one we are root for mounts and cover paths that the payload must not
see; in the inner one it is the pilot's user again, without privileges, and the kernel locks the mounts.

The wrapper runs as the pilot, so nothing from the job may influence it: it gets an environment of its own,
and that of the payload is read from a file once the payload is isolated.
"""

from __future__ import annotations

import os
import re
import secrets
import shlex
import shutil
import stat
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from pilotage.fabric.pilot.errors import HostTrouble, NotPossibleHere
from pilotage.fabric.pilot.node import containers
from pilotage.fabric.pilot.payload import payload as payload_payload
from pilotage.fabric.pilot.payload import work_area
from pilotage.fabric.pilot.payload.work_area import WorkArea

_UNSHARE = (
    *("unshare", "--user", "--map-root-user", "--mount", "--pid", "--ipc"),
    *("--fork", "--kill-child", "--mount-proc", "--"),
)
#: The work directory stays reachable as the current one, whatever is mounted over its path: hence `-c`,
#: which keeps mount from resolving the path. The job is not to blame for a failure: it is rescheduled.
#: Cgroups of the account can be read, but not killed, frozen or limited; of terminals there are only its own.
_SCRIPT = f"""\
set -e
trap 'exit {payload_payload.RESCHEDULE}' EXIT
area=$1 uid=$2 gid=$3
shift 3
cd "$area"
mkdir -p hidden
while [ "$1" != -- ]
do
  case $1 in
    /tmp | /var/tmp) cover=tmp ;;
    *) cover=hidden ;;
  esac
  if [ -d "$1" ]
  then mount -c --bind "./$cover" "$1"
  elif [ -e "$1" ]
  then mount -c --bind /dev/null "$1"
  fi
  shift
done
shift
if [ -d /dev/shm ]
then mount -t tmpfs tmpfs /dev/shm
fi
if [ -d /dev/pts ]
then mount -t devpts -o newinstance,ptmxmode=0666 devpts /dev/pts || mount -c --bind ./hidden /dev/pts
fi
while read -r _ _ _ _ place _
do
  case $place in
    /sys/fs/cgroup | /sys/fs/cgroup/*)
      mount -c -o remount,bind,ro,nosuid,nodev,noexec "$place" || mount -c --bind ./hidden "$place" ;;
  esac
done </proc/self/mountinfo
if [ -e /proc/sys/user/max_cgroup_namespaces ]
then echo 0 >/proc/sys/user/max_cgroup_namespaces
fi
mkdir -p "$area/work" "$area/tmp"
mount -c --bind ./work "$area/work"
mount -c --bind ./tmp "$area/tmp"
cd "$area/work"
case $(unshare --help) in
  *--map-user*) user="--map-user=$uid --map-group=$gid" ;;
  *) user=--map-root-user ;;
esac
trap - EXIT
set +e
unshare --user --mount $user -- "$@"
exit $?
"""
_TEMPORARY = ("/tmp", "/var/tmp")  # noqa: S108 - hidden, not used
#: Sockets of the user session and the batch system, by which a payload could start processes outside.
_SOCKETS = ("/run/user", "/run/dbus", "/run/munge")
#: Variables of the pilot that name private directories or files.
_PRIVATE = (
    *("HOME", "TMPDIR", "PILOTAGE_HOME", "XDG_DATA_HOME"),
    *("X509_USER_PROXY", "X509_USER_KEY", "BEARER_TOKEN_FILE"),
)


def private_paths(own: Mapping[str, str], *more: Path | None) -> tuple[Path, ...]:
    """Paths to hide from payloads: temporary files, sockets, paths in the pilot's environment, and more."""
    named = [Path(own[name]) for name in _PRIVATE if own.get(name)]
    paths = [
        Path(tempfile.gettempdir()),
        *map(Path, (*_TEMPORARY, *_SOCKETS)),
        *named,
        *(each for each in more if each),
    ]
    resolved = (path.absolute().resolve() for path in paths)
    # Directories before their contents; the root itself cannot be hidden.
    hidden = sorted((path for path in resolved if path != Path("/")), key=lambda path: len(path.parts))
    return tuple(dict.fromkeys(hidden))


def namespace_words(hidden: Sequence[Path]) -> tuple[str, ...]:
    """The wrapper command for `userns`; `{area}` stands for the payload's work area."""
    arguments = ("{area}", str(os.getuid()), str(os.getgid()), *map(str, hidden), "--")
    return (*_UNSHARE, "/bin/sh", "-c", _SCRIPT, "sh", *arguments)


NONE, USERNS, APPTAINER, COMMAND = "none", "userns", "apptainer", "command"
#: `userns` where it works, else none: a container needs an image, which nobody has stated.
STRONGEST = "strongest"
KINDS = (STRONGEST, NONE, USERNS, APPTAINER, COMMAND)

#: Container options: of the host, only the payload's directories are mounted, and no variables are passed.
#: They come last, since they may be below /tmp.
_CONTAINER = (
    *("--containall", "--no-home", "--pwd", "{home}"),
    *("--bind", "{scratch}:/tmp", "--bind", "{scratch}:/var/tmp"),
    *("--bind", "{home}", "--bind", "{scratch}"),
)
#: Starts the payload as the last words: reads its environment, empties the file, which shows that the
#: payload was reached, and executes it.
_LAUNCH = ("/bin/sh", "-c", '. "$0" && : > "$0" && exec "$@"')
_ENVIRONMENT = ".environment"
#: File with the first line of that file, which the payload never sees, so it cannot write it again.
_MARK = "mark"
#: Names that a shell can export; some are reserved by the shell.
_EXPORTABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*", re.ASCII)
_OF_SHELL = frozenset({"_", "PPID", "UID", "EUID", "SHELLOPTS", "BASHOPTS", "IFS", "PS4"})
#: PATH of the wrapper, and prefixes of the pilot's variables that are passed to it.
_PATH = "/usr/local/bin:/usr/bin:/bin:/usr/sbin:/sbin"
#: Variables with which a container's image is fetched.
_PROXIES = ("http_proxy", "https_proxy", "no_proxy", "HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY")
_SEEN_PREFIXES = ("APPTAINER", "SINGULARITY", "XDG_RUNTIME_DIR", "DBUS_SESSION_BUS_ADDRESS")
#: Timeout of the check in seconds; a container image may have to be fetched first.
_PATIENCE = 900.0


@dataclass(frozen=True)
class Isolation:
    """How payloads are isolated: the kind and its wrapper command."""

    kind: str = NONE
    words: tuple[str, ...] = ()  #: wrapper command; {home}, {scratch}, {area} are the payload's directories
    is_strongest: bool = False  #: chosen as the strongest, which is none where this one is not possible
    missing: str = ""  #: why the strongest is none on this host

    @property
    def has_programs_of_host(self) -> bool:
        """Whether the payload finds the programs of this host: False in a container."""
        return self.kind != APPTAINER

    def wrapped(
        self, words: Sequence[str], payload: Mapping[str, str], own: Mapping[str, str], area: WorkArea
    ) -> tuple[tuple[str, ...], Mapping[str, str]]:
        """Command and environment to execute for an isolated payload; `own` is the pilot's environment."""
        if self.kind == NONE:
            return tuple(words), payload
        before = [
            word.replace("{home}", str(area.home))
            .replace("{scratch}", str(area.scratch))
            .replace("{area}", str(area.top))
            for word in self.words
        ]
        variables = area.scratch / _ENVIRONMENT
        mark = f"# {secrets.token_hex(16)}\n"
        (area.top / _MARK).write_text(mark)
        variables.write_text(mark + _assignments(payload), encoding="utf-8", errors="surrogateescape")
        if not self.has_programs_of_host:
            _make_mount_points(area)
        seen = _SEEN_PREFIXES if self.has_programs_of_host else (*_SEEN_PREFIXES, *_PROXIES)
        kept = {name: value for name, value in own.items() if name.startswith(seen)}
        return (*before, *_LAUNCH, str(variables), *words), {"PATH": own.get("PATH") or _PATH, **kept}


def choose_isolation(
    kind: str, *, command: str | None, image: str | None, hidden: Sequence[Path], own: Mapping[str, str]
) -> Isolation:
    """Make the isolation from the command line's options; raises ValueError if they do not fit the kind."""
    if (image is not None) != (kind == APPTAINER):
        raise ValueError(f"--isolation {kind}: --image goes with {APPTAINER}, and only with that")
    if command is not None and kind in (STRONGEST, NONE, USERNS):
        raise ValueError(f"--isolation {kind}: takes no --isolation-command")
    if kind == NONE:
        return Isolation()
    if kind == STRONGEST:
        try:
            words = _find_program(namespace_words(hidden), USERNS, own)
        except ValueError as error:
            return Isolation(missing=str(error))
        return Isolation(USERNS, words, is_strongest=True)
    if kind == USERNS:
        return Isolation(kind, _find_program(namespace_words(hidden), kind, own))
    if kind == APPTAINER:
        runs = _words(command or "apptainer exec", kind)
        return Isolation(kind, _find_program((*runs, *_CONTAINER, str(image)), kind, own))
    if command is None:
        raise ValueError(f"--isolation {kind}: needs --isolation-command")
    return Isolation(kind, _find_program(_words(command, kind), kind, own))


def _make_mount_points(area: WorkArea) -> None:
    """Where directories of a payload are below /tmp, its own /tmp must have places for them."""
    for directory in (area.home, area.scratch):
        for temporary in map(Path, _TEMPORARY):
            if temporary in directory.parents:
                (area.scratch / directory.relative_to(temporary)).mkdir(parents=True, exist_ok=True)


def contain(isolation: Isolation, image: str, *, options: Sequence[str], own: Mapping[str, str]) -> Isolation:
    """The isolation of a payload with an image of its own: a container, behind the site's command if any.

    A container keeps it from what namespaces would. Raises HostTrouble where none can be started.
    """
    if isolation.kind == APPTAINER:
        return Isolation(APPTAINER, (*isolation.words[:-1], *options, image))
    runtime = containers.find_runtime(own)
    if runtime is None:
        raise HostTrouble("neither apptainer nor singularity is in the PATH of the pilot")
    before = isolation.words if isolation.kind == COMMAND else ()
    return Isolation(APPTAINER, (*before, runtime, "exec", *_CONTAINER, *options, image))


def was_reached(area: WorkArea) -> bool:
    """Whether an isolated payload itself was executed, not only the wrapper."""
    mark = (area.top / _MARK).read_bytes()
    try:
        descriptor = os.open(area.scratch / _ENVIRONMENT, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    except OSError:
        return True
    with os.fdopen(descriptor, "rb", buffering=0) as file:
        return not stat.S_ISREG(os.fstat(descriptor).st_mode) or file.read(len(mark)) != mark


def find_working(isolation: Isolation, *, below: Path, own: Mapping[str, str]) -> Isolation:
    """The isolation that works on this host, tried with an empty payload, so that no job fails because of it.

    It is the chosen one; only where the strongest was wanted and is not possible, none, with the reason.

    Raises:
        NotPossibleHere: The host does not allow the kind that was stated.
        HostTrouble: It fails now: no memory, a full disk, too many processes or namespaces. Payloads can
            bring that about, so it must not open the files of others to them.
    """
    try:
        _try_isolation(isolation, below, own)
    except NotPossibleHere as error:
        if not isolation.is_strongest:
            raise
        return Isolation(missing=str(error))
    return isolation


def _try_isolation(isolation: Isolation, below: Path, own: Mapping[str, str]) -> None:
    if isolation.kind == NONE:
        return
    try:
        done = _run_isolated(isolation, below, own)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise HostTrouble(f"--isolation {isolation.kind}: {error}") from None
    if done.returncode != 0:
        said = " ".join(done.stderr.decode("utf-8", "replace").split())[-500:]
        kind = NotPossibleHere if _NOT_ALLOWED.search(said) or _has_no_namespaces() else HostTrouble
        raise kind(f"--isolation {isolation.kind} does not work here ({done.returncode}): {said}")


#: What `unshare` and `mount` report where the kernel, its settings or a container forbid it.
_NOT_ALLOWED = re.compile(
    r"\b(unshare|mount)\b.*(not permitted|permission denied|invalid argument|not implemented)", re.IGNORECASE
)
_MOST_NAMESPACES = Path("/proc/sys/user/max_user_namespaces")


def _has_no_namespaces() -> bool:
    """Whether the administrator has switched user namespaces off, which fails like a number used up."""
    try:
        return int(_MOST_NAMESPACES.read_text()) == 0
    except (OSError, ValueError):
        return False


def _run_isolated(
    isolation: Isolation, below: Path, own: Mapping[str, str]
) -> subprocess.CompletedProcess[bytes]:
    area = work_area.make_work_area(below, job_id=0, epoch=0)
    try:
        words, environment = isolation.wrapped(("/bin/sh", "-c", ":"), {}, own, area)
        environment = {**environment, "LC_ALL": "C"}  # messages are searched
        return subprocess.run(
            words,
            env=dict(environment),
            cwd=area.home,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=_PATIENCE,
            check=False,
        )
    finally:
        area.remove()


def _words(text: str, kind: str) -> tuple[str, ...]:
    try:
        words = tuple(shlex.split(text))
    except ValueError as error:
        raise ValueError(f"--isolation-command: {error}") from None
    if not words:
        raise ValueError(f"--isolation {kind}: --isolation-command is empty")
    return words


def _find_program(words: tuple[str, ...], kind: str, own: Mapping[str, str]) -> tuple[str, ...]:
    program, *rest = words
    path = shutil.which(program, path=f"{own.get('PATH', '')}:{_PATH}")
    if path is None:
        raise ValueError(f"--isolation {kind}: there is no {program} on this host")
    return (os.path.abspath(path), *rest)  # noqa: PTH100 - keeps symbolic links


def _assignments(payload: Mapping[str, str]) -> str:
    """Shell commands that export the environment; names that a shell cannot export are left out."""
    names = [name for name in payload if _EXPORTABLE.fullmatch(name) and name not in _OF_SHELL]
    return "".join(f"export {name}={shlex.quote(payload[name])}\n" for name in names)
