"""Names of requests for work, kept on disk: a gateway that was killed asks again under the same one.

The service answers a request that it has answered before with the same jobs. So the name is written down
before the request is made, and removed when what it brought is recorded: an answer that nobody saw, since
the line or the gateway broke, costs nothing.
"""

import json
import os
import uuid
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from pilotage.fabric.manager.errors import StateUnusable


@dataclass(slots=True)
class Requests:
    """One file, of one process."""

    file: Path
    _names: dict[str, str] = field(init=False)

    def __post_init__(self) -> None:
        self._names = self._read()

    @property
    def names(self) -> Mapping[str, str]:
        """Names of requests by what they ask for; those of an earlier process may have been answered."""
        return self._names

    def name(self, wanted: str) -> str:
        """The name of the request to make for `wanted`, on the disk when it returns.

        Raises:
            StateUnusable: It cannot be written.
        """
        if wanted not in self._names:
            self._write({**self._names, wanted: str(uuid.uuid4())})
        return self._names[wanted]

    def done(self, wanted: str) -> None:
        """What the request brought is recorded: the next one has another name.

        Raises:
            StateUnusable: That cannot be written.
        """
        self._write({each: name for each, name in self._names.items() if each != wanted})

    def _read(self) -> dict[str, str]:
        try:
            content = json.loads(self.file.read_text(encoding="utf-8"))
        except FileNotFoundError:
            return {}
        except (OSError, ValueError) as error:
            raise StateUnusable(f"{self.file}: {error}") from error
        if not isinstance(content, dict):
            raise StateUnusable(f"{self.file}: holds {content!r:.60}, no names of requests")
        return {str(wanted): str(name) for wanted, name in content.items()}

    def _write(self, names: dict[str, str]) -> None:
        aside = self.file.with_suffix(".new")
        try:
            with aside.open("w", encoding="utf-8") as file:
                json.dump(names, file)
                file.flush()
                os.fsync(file.fileno())
            aside.replace(self.file)
        except OSError as error:
            raise StateUnusable(f"{self.file}: {error.strerror}") from error
        self._names = names
