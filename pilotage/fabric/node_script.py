"""One executable text for a batch system: finds a Python on the node, unpacks its files, runs a program.

What a director gives to a batch system: one executable text that holds a whole pilot.
"""

import base64
import io
import json
import shlex
import zipfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

#: Names of Python that are looked for: what the host calls its own, then by version, then where enterprise
#: systems keep one that is not in anybody's way.
PYTHONS = (
    "python3",
    *(f"python3.{minor}" for minor in reversed(range(9, 20))),
    *("/usr/bin/python3", "/usr/libexec/platform-python"),
)
#: What the script ends with where a host cannot run jobs.
HOST = 4

# Signals go to the program, and its files are removed when it has ended: hence no `exec`.
_TEXT = """\
#!/bin/sh
# {about}
umask 077
for python in {pythons}
do
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
import base64, io, sys, zipfile
zipfile.ZipFile(io.BytesIO(base64.b64decode('''
{files}
'''))).extractall(sys.argv[1])
END_OF_FILES
{fetch}"$python" -E -s "$area/{program}" {words} &
program=$!
trap 'kill -TERM "$program" 2>/dev/null' TERM INT HUP USR2
trap 'kill -USR1 "$program" 2>/dev/null' USR1
wait "$program"
status=$?
while kill -0 "$program" 2>/dev/null
do
  wait "$program"
  status=$?
done
exit "$status"
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeScript:
    """What the text is made of."""

    name: str  #: of the directory that it makes, and in its messages
    about: str  #: one line for who finds it on a node
    program: str  #: a file of `$area`, run by Python
    words: Sequence[str] = ()  #: its arguments, as words of the shell; `$area` is the directory of the files
    files: Mapping[str, bytes] = field(default_factory=dict, repr=False)  #: that it brings along
    fetch: str = ""  #: a command of the shell that brings more; the host is to blame if it fails

    def text(self) -> str:
        """The script: ASCII, with lines that every batch system takes."""
        return _TEXT.format(
            name=self.name,
            about=self.about,
            pythons=" ".join(PYTHONS),
            files=_packed(self.files),
            fetch=f"{self.fetch} || exit {HOST}\n" if self.fetch else "",
            program=self.program,
            words=" ".join(self.words),
            host=HOST,
        )


def _packed(files: Mapping[str, bytes]) -> str:
    archive = io.BytesIO()
    with zipfile.ZipFile(archive, "w", zipfile.ZIP_DEFLATED) as members:
        for name, data in files.items():
            members.writestr(name, data)
    return base64.encodebytes(archive.getvalue()).decode("ascii").rstrip()


@dataclass(frozen=True, slots=True, kw_only=True)
class PilotScript:
    """What one pilot is to know."""

    url: str  #: of the service
    stamp: str
    secret: str = field(repr=False)  #: to be exchanged for its token, once
    queue: str = ""  #: `Site/CE/Queue`; empty where a broker picks it
    landings: Mapping[str, str] = field(default_factory=dict)  #: what it may be then, by batch queue
    pools: tuple[str, ...] = ()  #: ids of SubmitPools to serve; empty: it asks
    authorities: str | None = None  #: CA certificates (PEM); None: those of the host
    words: tuple[str, ...] = ()  #: further arguments of `pilotage pilot`; anybody on the host can read them


def pilot_text(script: PilotScript, zipapp: bytes) -> str:
    """The script: ASCII, with lines that every batch system takes.

    Args:
        script: What the pilot is to know.
        zipapp: The pilot itself, `pilot.bundle.content()`.
    """
    return NodeScript(
        name="pilot",
        about="A pilot. Its secret is good for one start: a second one ends at once and touches nothing.",
        program="pilot.pyz",
        words=_words(script),
        files={**_script_files(script), "pilot.pyz": zipapp},
    ).text()


def _script_files(script: PilotScript) -> Mapping[str, bytes]:
    files = {"secret": script.secret.encode()}
    if script.pools:
        files["pools"] = "\n".join(script.pools).encode()
    if script.landings:
        files["landings.json"] = json.dumps(dict(script.landings)).encode()
    if script.authorities is not None:
        files["authorities.pem"] = script.authorities.encode()
    return files


def _words(script: PilotScript) -> list[str]:
    """The arguments of the pilot as words of the shell."""
    named = {"--url": script.url, "--stamp": script.stamp}
    if script.queue:
        named |= dict(zip(("--site", "--ce", "--queue"), script.queue.split("/"), strict=True))
    words = [shlex.quote(f"{name}={value}") for name, value in named.items()]
    words.append('--secret-file="$area/secret"')
    if script.pools:
        words.append('--pools="@$area/pools"')
    if script.landings:
        words.append('--landings="$area/landings.json"')
    if script.authorities is not None:
        words.append('--ca="$area/authorities.pem"')
    return words + [shlex.quote(word) for word in script.words]
