"""Executable scripts for batch systems: find a Python on the node, unpack files, run a program.

`pilot_text` makes the script of a whole pilot, which a director submits.
"""

import base64
import json
import shlex
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache

#: Python interpreters to try: the host's default, then by version, then the places where enterprise systems
#: keep one apart from the user's PATH.
PYTHONS = (
    "python3",
    *(f"python3.{minor}" for minor in reversed(range(9, 20))),
    *("/usr/bin/python3", "/usr/libexec/platform-python"),
)
#: Exit status of the script on a host that cannot run jobs.
HOST = 4

# Signals are passed on to the program, and its files are removed when it has ended: hence no `exec`.
_TEXT = """\
#!/bin/sh
# {about}
umask 077
for candidate in {pythons}
do
  # With its path: without PATH in the environment, as in jobs of HTCondor, Python does not find its own.
  python=$(command -v "$candidate") &&
    "$python" -c 'import sys, ssl, zlib; sys.exit(sys.version_info < (3, 9))' >/dev/null 2>&1 && break
  python=
done
if [ -z "$python" ]
then
  echo "{name}: no Python 3.9 or later on $(uname -n); looked for {pythons}" >&2
  exit {host}
fi
area=$(mktemp -d "${{TMPDIR:-/tmp}}/{name}-XXXXXXXX") || exit {host}
trap 'rm -rf "$area"' EXIT
trap 'exit {host}' TERM INT HUP USR1 USR2
"$python" -I - "$area" <<'END_OF_FILES' || exit {host}
import base64, os, sys, zlib
for name, text in (
{files}
):
  with open(os.path.join(sys.argv[1], name), "wb") as file:
    file.write(zlib.decompress(base64.b64decode(text)))
END_OF_FILES
signalled=
{fetch}{feed}"$python" -E -s "$area/{program}" {words} &
program=$!
trap 'signalled=yes; kill -TERM "$program" 2>/dev/null' TERM INT HUP USR2
trap 'signalled=yes; kill -USR1 "$program" 2>/dev/null' USR1
wait "$program"
status=$?
# A signal ends `wait`, not the program, whose status a second `wait` has even if it ended meanwhile.
while [ "$status" -gt 128 ] && [ "$signalled" ]
do
  signalled=
  wait "$program"
  status=$?
done
exit "$status"
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeScript:
    """A shell script for a node: it unpacks files and runs a Python program."""

    name: str  #: prefix of its directory, and of its messages
    about: str  #: one line of explanation for people who find it on a node
    program: str  #: Python file in `$area` to run
    words: Sequence[str] = ()  #: its arguments, quoted for the shell; `$area` is the directory of the files
    files: Mapping[str, bytes] = field(default_factory=dict, repr=False)  #: to unpack, by name
    #: On its standard input: other processes of the account could read a file before the program removes it.
    secret: str = field(default="", repr=False)
    pythons: Sequence[str] = ()  #: interpreters to try before the usual ones
    fetch: str = ""  #: shell command that gets further files; the host is to blame if it fails

    def text(self) -> str:
        """Generate the script: ASCII, with lines short enough for every batch system."""
        return _TEXT.format(
            name=self.name,
            about=self.about,
            pythons=" ".join(map(shlex.quote, (*self.pythons, *PYTHONS))),
            files="\n".join(f"({name!a}, '''\n{_pack(data)}''')," for name, data in self.files.items()),
            fetch=f"{self.fetch} || exit {HOST}\n" if self.fetch else "",
            feed=f"printf %s {shlex.quote(self.secret)} | " if self.secret else "",
            program=self.program,
            words=" ".join(self.words),
            host=HOST,
        )


@lru_cache(maxsize=16)  # of thousands of pilots the program is the same, and most of the work
def _pack(content: bytes) -> str:
    return base64.encodebytes(zlib.compress(content)).decode("ascii")


@dataclass(frozen=True, slots=True, kw_only=True)
class PilotScript:
    """Parameters of a pilot's script."""

    stamp: str
    secret: str = field(repr=False)  #: exchanged once for the pilot's token
    queue: str = ""  #: `Site/CE/Queue`; empty where a broker picks it
    possible_queues: Mapping[str, str] = field(
        default_factory=dict
    )  #: possible queues of a broker, by batch queue
    pools: tuple[str, ...] = ()  #: ids of SubmitPools to serve; empty: from the service
    words: tuple[str, ...] = ()  #: further arguments of `pilotage pilot`, readable by everybody on the host


def pilot_text(
    script: PilotScript,
    zipapp: bytes,
    *,
    url: str,
    authorities: str | None = None,
    pythons: Sequence[str] = (),
) -> str:
    """Generate the script of a pilot around its archive, `bundle.pilot_bundle()`.

    With the address of the service, the CA certificates (PEM) to trust (None: those of the host), and
    interpreters to try first.
    """
    named = {"--url": url, "--stamp": script.stamp}
    if script.queue:
        named |= dict(zip(("--site", "--ce", "--queue"), script.queue.split("/"), strict=True))
    words = [shlex.quote(f"{name}={value}") for name, value in named.items()]
    words.append("--secret-file=-")
    files = {}
    if script.pools:
        words.append('--pools="@$area/pools"')
        files["pools"] = "\n".join(script.pools).encode()
    if script.possible_queues:
        words.append('--possible-queues="$area/possible_queues.json"')
        files["possible_queues.json"] = json.dumps(dict(script.possible_queues)).encode()
    if authorities is not None:
        words.append('--ca="$area/authorities.pem"')
        files["authorities.pem"] = authorities.encode()
    return NodeScript(
        name="pilot",
        about="A pilot. Its secret is good for one start: a second one ends at once and touches nothing.",
        program="pilot.pyz",
        words=words + [shlex.quote(word) for word in script.words],
        secret=script.secret,
        pythons=pythons,
        files={**files, "pilot.pyz": zipapp},
    ).text()
