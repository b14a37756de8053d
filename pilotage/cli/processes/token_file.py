"""The token of a director or gateway: that of a file, and the renewed one."""

import logging
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from pilotage.fabric.pilot import job_files
from pilotage.fabric.pilot.service import credentials
from requirements.errors import InvalidInput, Problem

log = logging.getLogger(__name__)

#: A token is renewed when half of its life is over, or so many seconds before its end if that is later.
_RENEW_BEFORE = 12 * 3600.0
#: Claims by which two tokens are those of one bearer.
_IDENTITY = ("sub", "role", "vos", "sites")


def read_token(file: Path, invalid: type[InvalidInput]) -> str:
    """The token in a file; `invalid` is the class of the error."""
    text = file.read_text(encoding="utf-8", errors="replace").strip()
    if not text or not text.isascii() or len(text.split()) != 1:
        raise invalid([Problem(path=str(file), message="holds no token")])
    return text


@dataclass(slots=True, kw_only=True)
class TokenFile:
    """The token of a director or gateway: that of a file, or one that was renewed from it and expires later.

    The file is read anew each time, so that it can be replaced without a restart. A token that the service
    rejects is not used again while there is another one.
    """

    file: Path
    kept: Path  #: file of the renewed token
    invalid: type[InvalidInput]
    clock: Callable[[], float] = time.time  #: seconds since 1970
    _given: str = field(init=False)
    _rejected: str = ""

    def __post_init__(self) -> None:
        self._given = read_token(self.file, self.invalid)

    def __call__(self) -> str:
        """The token to use now."""
        with suppress(OSError, self.invalid):
            self._given = read_token(self.file, self.invalid)
        renewed = self._read_kept()
        if renewed is None or self._rejected == renewed:
            return self._given
        if self._rejected == self._given:
            return renewed
        return max(self._given, renewed, key=lambda each: _read_time(each, "exp"))

    def reject(self, token: str) -> None:
        """The service has refused this token: use the other one, if there is one."""
        self._rejected = token

    def keep(self, token: str) -> None:
        """Store a renewed token, readable by its owner only; on failure the given one stays in use."""
        try:
            job_files.write(str(self.kept.parent), self.kept.name, token.encode())
        except OSError as error:
            log.warning("the renewed token cannot be stored: %s: %s", self.kept, error.strerror)

    def is_due(self) -> bool:
        """Whether the token that is used now is to be renewed."""
        token = self()
        issued, expires = _read_time(token, "iat"), _read_time(token, "exp")
        return bool(expires) and expires - self.clock() < min((expires - issued) / 2, _RENEW_BEFORE)

    def _read_kept(self) -> str | None:
        """The renewed token, if it has the identity of the given one."""
        try:
            kept = self.kept.read_text(encoding="ascii").strip()
        except (OSError, UnicodeDecodeError):
            return None
        ours, theirs = credentials.read_claims(kept), credentials.read_claims(self._given)
        return kept if all(ours.get(name) == theirs.get(name) for name in _IDENTITY) else None


def _read_time(token: str, name: str) -> float:
    claims: Mapping[str, object] = credentials.read_claims(token)
    value = claims.get(name)
    return float(value) if isinstance(value, int | float) else 0.0
