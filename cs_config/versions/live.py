"""The configuration of a running process, kept up to date."""

import logging
import threading
from collections.abc import Callable
from contextlib import suppress
from datetime import UTC, datetime

from sqlalchemy import Connection

from cs_config import validate
from cs_config.errors import ConfigError, VersionRemoved
from cs_config.tree.configuration import Configuration
from cs_config.versions import store

log = logging.getLogger(__name__)

#: The configuration before the first version is stored.
NOTHING = validate.parse("Resources: {}", "nothing")


class LiveConfiguration:
    """The current version of the configuration; if a newer one cannot be read, the running one stays.

    A process that starts meanwhile runs the newest version that it can read. Thread-safe; readers never wait.
    """

    def __init__(
        self,
        load: Callable[[Connection, int], Configuration] = store.load_version,
        first: Configuration = NOTHING,
        clock: Callable[[], datetime] = lambda: datetime.now(UTC),
    ) -> None:
        self._load = load
        self._running = first
        self._clock = clock
        #: Number and digest of the running version, and of one that cannot be read. The digest is needed
        #: because after a loss of commits another text may get a known number.
        self._running_key = (first.version, store.text_digest(first.source))
        self._unreadable_key: tuple[int, str] | None = None
        self._problem: str | None = None
        self._refreshing = threading.Lock()

    @property
    def current(self) -> Configuration:
        """The current version without expired values. Read it once for values that belong together."""
        running = self._running
        return running.at_moment(self._clock()) if running.moments else running

    @property
    def problem(self) -> str | None:
        """Why the newest version is not the running one, if so."""
        return self._problem

    def refresh(self, conn: Connection) -> bool:
        """Load the newest version if there is another one; return whether `current` changed.

        Costs one small statement otherwise. ConfigError if there are versions, and none can be read: an empty
        configuration would apply other rules to jobs.
        """
        with self._refreshing:
            newest = store.current_digest(conn)
            number, _ = newest
            if not number or newest in (self._running_key, self._unreadable_key):
                return False
            try:
                self._running = self._load(conn, number)
            except ConfigError as error:
                is_first = not self._running.version
                if is_first and not self._load_earlier(conn, number):
                    raise
                self._unreadable_key, self._problem = newest, str(error)
                log.warning(
                    "configuration %d cannot be read, %d stays: %s", number, self.current.version, error
                )
                return is_first
            self._running_key = newest
            self._unreadable_key = self._problem = None
            return True

    def _load_earlier(self, conn: Connection, number: int) -> bool:
        """Load the newest readable one of the latest versions before this; False: there is none."""
        for version in store.list_versions(conn):
            if version.version < number:
                with suppress(ConfigError, VersionRemoved):
                    self._running = self._load(conn, version.version)
                    self._running_key = version.version, version.digest
                    return True
        return False
