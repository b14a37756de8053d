"""Files that nobody but their owner may read, such as those with tokens."""

import os
from pathlib import Path


def write(path: Path, text: str) -> None:
    """Write a file anew: it is whole or as it was before, and was never open to others.

    Raises:
        OSError: It cannot be written.
    """
    aside = path.with_suffix(".new")
    aside.unlink(missing_ok=True)
    descriptor = os.open(aside, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(descriptor, "w", encoding="utf-8") as stream:
        stream.write(text)
    aside.replace(path)
