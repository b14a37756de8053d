"""Input sandbox of a job: an archive that was uploaded before, identified by the digest of its content."""

import re
from collections.abc import Iterator

from optimizers.description.description import JobDescription

#: As returned by `POST /sandboxes`; DIRAC adds the prefix `SB:`.
_REFERENCE = re.compile(r"(?:SB:)?sha256:(?P<digest>[0-9a-f]{64})", re.IGNORECASE)


def digest_of(reference: str) -> str | None:
    """Return the digest in `sha256:<64 hexadecimal digits>`; None for any other text."""
    found = _REFERENCE.fullmatch(reference.strip())
    return found["digest"].lower() if found else None


def sandbox_digest(description: JobDescription, sent_along: str | None) -> str | None:
    """Return the digest of a job's archive: the one it names, else `sent_along`, that of the submission."""
    named = [digest for entry in description.input_sandbox if (digest := digest_of(entry))]
    return named[0] if named else digest_of(sent_along or "")


def sandbox_problems(description: JobDescription, sent_along: str | None) -> Iterator[str]:
    """Yield messages about problems of the input sandbox."""
    if sent_along and digest_of(sent_along) is None:
        yield f"{sent_along!r} is not a sandbox reference, which is sha256: and 64 hexadecimal digits"
        return
    named = [entry for entry in description.input_sandbox if digest_of(entry)]
    if len(named) > 1:
        yield "names more than one archive"
    if named or sent_along:
        return
    files = [entry for entry in description.input_sandbox if not entry.upper().startswith("LFN:")]
    if files:
        yield (
            f"{', '.join(files[:3])}: not uploaded; send an archive to /sandboxes and name its reference, "
            "or use `pilotage job submit`"
        )
