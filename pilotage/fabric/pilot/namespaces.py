"""User namespaces by util-linux: a payload that sees no process but its own, and no directory of others.

Two namespaces, one in the other. In the first we are root, as far as mounts are concerned, and put the
payload's own directories over what it must not see; in the second it is the user of the pilot again, without
any right, and the kernel locks the mounts it was given.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from pilotage.fabric.pilot import report

_UNSHARE = (
    *("unshare", "--user", "--map-root-user", "--mount", "--pid", "--ipc"),
    *("--fork", "--kill-child", "--mount-proc", "--"),
)
#: The work directory stays reachable as the current one, whatever is mounted over its path: hence `-c`,
#: by which mount does not look for another name of it. Where something fails the job is not to blame.
_SCRIPT = f"""\
set -e
trap 'exit {report.RESCHEDULE}' EXIT
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
#: Where this user's session and the batch system take orders, also to run something that is not isolated.
_SOCKETS = ("/run/user", "/run/dbus", "/run/munge")
#: Variables of ours that name directories or files which are nobody else's business.
_PRIVATE = (
    *("HOME", "TMPDIR", "PILOTAGE_HOME", "XDG_DATA_HOME"),
    *("X509_USER_PROXY", "X509_USER_KEY", "BEARER_TOKEN_FILE"),
)


def private(own: Mapping[str, str], *more: Path | None) -> tuple[Path, ...]:
    """What payloads must not see: temporary files, ways out, what our environment names, and more.

    Args:
        own: The pilot's environment.
        more: Further files and directories; None is none.
    """
    named = [Path(own[name]) for name in _PRIVATE if own.get(name)]
    paths = [
        Path(tempfile.gettempdir()),
        *map(Path, (*_TEMPORARY, *_SOCKETS)),
        *named,
        *(each for each in more if each),
    ]
    return tuple(dict.fromkeys(_outermost_first(path.absolute().resolve() for path in paths)))


def words(hidden: Sequence[Path]) -> tuple[str, ...]:
    """What comes before the words of a payload; `{area}` is its work area.

    Args:
        hidden: Absolute paths of files and directories that it does not see.
    """
    arguments = ("{area}", str(os.getuid()), str(os.getgid()), *map(str, hidden), "--")
    return (*_UNSHARE, "/bin/sh", "-c", _SCRIPT, "sh", *arguments)


def _outermost_first(paths: Iterable[Path]) -> list[Path]:
    """Sorted so that a directory comes before what is in it; the root itself cannot be hidden."""
    return sorted((path for path in paths if path != Path("/")), key=lambda path: len(path.parts))
