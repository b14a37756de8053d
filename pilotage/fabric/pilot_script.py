"""What a director gives to a batch system: one executable text that holds a whole pilot."""

import base64
import io
import json
import shlex
import zipfile
from collections.abc import Mapping
from dataclasses import dataclass, field

#: Versions of Python that are looked for by name, after the one that the host calls its own.
_VERSIONS = range(9, 20)
#: Where enterprise systems keep one that is not in anybody's way.
_ELSEWHERE = ("/usr/bin/python3", "/usr/libexec/platform-python")

# Signals go to the pilot, and its files are removed when it has ended: hence no `exec`.
_TEXT = """\
#!/bin/sh
# A pilot. Its secret is good for one start: a second one ends at once and touches nothing.
umask 077
for python in {pythons}
do
  "$python" -c 'import sys, ssl, zlib; sys.exit(sys.version_info < (3, 9))' >/dev/null 2>&1 && break
  python=
done
if [ -z "$python" ]
then
  echo "pilot: no Python 3.9 or later on $(uname -n); looked for {pythons}" >&2
  exit {host}
fi
area=$(mktemp -d "${{TMPDIR:-/tmp}}/pilot-XXXXXXXX") || exit {host}
trap 'rm -rf "$area"' EXIT
trap 'exit {host}' TERM INT HUP USR1 USR2
"$python" -I - "$area" <<'END_OF_FILES' || exit {host}
import base64, io, sys, zipfile
zipfile.ZipFile(io.BytesIO(base64.b64decode('''
{files}
'''))).extractall(sys.argv[1])
END_OF_FILES
"$python" -E -s "$area/pilot.pyz" {words} &
pilot=$!
trap 'kill -TERM "$pilot" 2>/dev/null' TERM INT HUP USR2
trap 'kill -USR1 "$pilot" 2>/dev/null' USR1
wait "$pilot"
status=$?
while kill -0 "$pilot" 2>/dev/null
do
  wait "$pilot"
  status=$?
done
exit "$status"
"""
#: What the pilot ends with where a host cannot run jobs.
_HOST = 4


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


def text(script: PilotScript, zipapp: bytes) -> str:
    """The script: ASCII, with lines that every batch system takes.

    Args:
        script: What the pilot is to know.
        zipapp: The pilot itself, `pilot.bundle.content()`.
    """
    files = {**_files(script), "pilot.pyz": zipapp}
    return _TEXT.format(
        pythons=" ".join(_pythons()),
        files=_packed(files),
        words=" ".join(_words(script)),
        host=_HOST,
    )


def _files(script: PilotScript) -> Mapping[str, bytes]:
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


def _packed(files: Mapping[str, bytes]) -> str:
    archive = io.BytesIO()
    with zipfile.ZipFile(archive, "w", zipfile.ZIP_DEFLATED) as members:
        for name, data in files.items():
            members.writestr(name, data)
    return base64.encodebytes(archive.getvalue()).decode("ascii").rstrip()


def _pythons() -> list[str]:
    return ["python3", *(f"python3.{minor}" for minor in reversed(_VERSIONS)), *_ELSEWHERE]
