"""One executable text for a batch system: finds a Python on the node, unpacks its files, runs a program."""

import base64
import io
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
