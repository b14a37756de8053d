"""Errors of the configuration and of requests about it."""

from collections.abc import Sequence

from cs_config.source.diff import Difference
from requirements.errors import InvalidInput, NotFound, PilotageError, Problem


class ConfigError(InvalidInput):
    """A version of the configuration is wrong; its editor has to correct it."""

    code = "config_error"


class VersionConflict(PilotageError):
    """Another version was stored in the meantime: read again, decide again."""

    code = "version_conflict"

    def __init__(self, *, expected: int, current: int) -> None:
        super().__init__(f"the configuration is at version {current}, not at {expected}: read it again")
        self.current = current
        self.details = {"expected": expected, "current": current}


class EditConflict(VersionConflict):
    """The edited paths were changed by others in the meantime."""

    def __init__(self, *, expected: int, current: int, conflicts: Sequence[Difference]) -> None:
        super().__init__(expected=expected, current=current)
        paths = ", ".join(each.path for each in conflicts[:5])
        if conflicts:
            self.args = (
                f"{paths}: changed since version {expected}; version {current} is in force, read it again",
            )
        self.conflicts = tuple(conflicts)
        self.details = {**self.details, "conflicts": [each.as_json() for each in conflicts]}


class QueueNotFound(NotFound):
    """The configuration has no queue of this address."""

    code = "queue_not_found"
    noun = "queue"


class SiteNotFound(NotFound):
    """The configuration has no site, or no CE of a site, of this name."""

    code = "site_not_found"
    noun = "place"


class PathNotFound(NotFound):
    """The configuration has nothing at this path."""

    code = "path_not_found"
    noun = "path"


class VersionNotFound(NotFound):
    """No version of this number was ever stored."""

    code = "version_not_found"
    noun = "version"


class VersionRemoved(VersionNotFound):
    """Retention has removed the text of a version; its author, time and changed paths are still known."""

    noun = "text of version"


def one_problem(path: str, message: str, **where: str | int | None) -> ConfigError:
    """A `ConfigError` with a single problem."""
    return ConfigError([Problem(path=path, message=message, **where)])  # type: ignore[arg-type]
