"""What can be wrong with the configuration, or with a question about it."""

from collections.abc import Mapping, Sequence

from cs_config.versions.diff import Difference
from requirements.errors import InvalidInput, NotFound, PilotageError, Problem


class ConfigError(InvalidInput):
    """A version of the configuration is wrong; the one who edits it has to mend it."""

    code = "config_error"


class VersionConflict(PilotageError):
    """Someone else stored a version meanwhile: read again, decide again."""

    code = "version_conflict"

    def __init__(self, *, expected: int, current: int) -> None:
        super().__init__(f"the configuration is at version {current}, not at {expected}: read it again")
        self.expected = expected
        self.current = current

    @property
    def details(self) -> Mapping[str, object]:
        """The version that was expected and the one that was found."""
        return {"expected": self.expected, "current": self.current}


class EditConflict(VersionConflict):
    """What somebody edits was changed by others meanwhile."""

    def __init__(self, *, expected: int, current: int, conflicts: Sequence[Difference]) -> None:
        super().__init__(expected=expected, current=current)
        paths = ", ".join(each.path for each in conflicts[:5])
        if conflicts:
            self.args = (
                f"{paths}: changed since version {expected}; version {current} is in force, read it again",
            )
        self.conflicts = tuple(conflicts)

    @property
    def details(self) -> Mapping[str, object]:
        """The versions, and under `conflicts` what each path said in the one and says in the other."""
        return {**super().details, "conflicts": [each.as_json() for each in self.conflicts]}


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


def one_problem(path: str, message: str, **where: str | int | None) -> ConfigError:
    """The error that has this one problem."""
    return ConfigError([Problem(path=path, message=message, **where)])  # type: ignore[arg-type]
