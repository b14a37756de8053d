"""Record commands in a terminal as an SVG that plays: `python -m docs.pictures.record` writes `terminal.svg`.

A service of its own runs in a temporary directory meanwhile. Each command appears, then what it printed.
"""

import fcntl
import os
import pty
import re
import shlex
import struct
import subprocess
import sys
import tempfile
import termios
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from io import StringIO
from pathlib import Path
from typing import Final

from rich.console import Console
from rich.terminal_theme import MONOKAI
from rich.text import Text

from examples.servers.starting import free_port, wait_until

PROJECT: Final = Path(__file__).parents[2]
PICTURE: Final = Path(__file__).with_name("terminal.svg")
WIDTH: Final = 112  #: columns of the terminal
COMMANDS: Final = (
    "pilotage job submit examples/osg/jobs/rfc.jdl",
    "pilotage job list",
    "pilotage job explain 1",
    "pilotage config preview --set 'Resources/Sites/OSG.Wisconsin.us/VOs/cms/SoftwareTag+=AppVersion2'",
)
_READING: Final = 2.5  #: seconds for what a command printed
_PROGRAM: Final = str(Path(sys.executable).with_name("pilotage"))


@contextmanager
def _service(home: Path) -> Iterator[dict[str, str]]:
    """The environment of commands, with a service that has the sites of the example."""
    tree = PROJECT / "examples" / "osg" / "resources.yaml"
    arguments = ["up", "--home", str(home), "--resources", str(tree), "--port", str(free_port())]
    environment = {**os.environ, "PILOTAGE_HOME": str(home)}
    with subprocess.Popen([_PROGRAM, *arguments], stdout=subprocess.DEVNULL, env=environment) as process:
        try:
            wait_until((home / "client.env").exists)
            yield environment
        finally:
            process.terminate()


def _run(command: str, environment: dict[str, str]) -> str:
    """What a command prints in a terminal of this width, with its colours."""
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 50, WIDTH, 0, 0))
    terminal = {**environment, "TERM": "xterm-256color", "COLUMNS": str(WIDTH)}
    words = [_PROGRAM, *shlex.split(command)[1:]]
    with subprocess.Popen(words, cwd=PROJECT, env=terminal, stdin=theirs, stdout=theirs, stderr=theirs):
        os.close(theirs)
        printed = b""
        with suppress(OSError):  # Linux ends the reading of a terminal so
            while block := os.read(ours, 65536):
                printed += block
    os.close(ours)
    return printed.decode().replace("\r\n", "\n").strip("\n")


def draw(scenes: Sequence[tuple[str, str]]) -> str:
    """The SVG of these commands, each with what it printed; a line appears when its scene has come."""
    console = Console(record=True, width=WIDTH, file=StringIO(), force_terminal=True)
    starts: list[float] = []
    for number, (command, printed) in enumerate(scenes):
        for delay, text in ((0.0, Text(f"$ {command}", style="bold green")), (0.6, Text.from_ansi(printed))):
            console.print(text)
            starts += [number * _READING + delay] * len(text.wrap(console, WIDTH))
    svg = console.export_svg(title="pilotage", theme=MONOKAI, unique_id="terminal")
    rules = "\n".join(
        f'    [clip-path$="line-{line})"] {{ animation: appear 0.2s {start:g}s both; }}'
        for line, start in enumerate(starts)
    )
    appear = "    @keyframes appear { from { opacity: 0; } to { opacity: 1; } }"
    return re.sub(r"\s*</style>", f"\n{appear}\n{rules}\n    </style>", svg, count=1)


def main() -> None:
    """Run the commands and write the picture."""
    with tempfile.TemporaryDirectory() as directory, _service(Path(directory)) as environment:
        PICTURE.write_text(draw([(command, _run(command, environment)) for command in COMMANDS]))


if __name__ == "__main__":
    main()
