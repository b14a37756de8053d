"""Files that only their owner may read, such as those with tokens."""

import os
from pathlib import Path


def write(path: Path, text: str) -> None:
    """Replace a file atomically; it is never readable by others.

    Raises:
        OSError: It cannot be written.
    """
    aside = path.with_suffix(".new")
    aside.unlink(missing_ok=True)
    descriptor = os.open(aside, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(descriptor, "w", encoding="utf-8") as stream:
        stream.write(text)
    aside.replace(path)
