"""Settings of a batch system in a configuration file, and the kinds of batch systems that are installed.

A kind is an entry point of the group `pilotage.batch`: its name is the `kind` of the settings, its object a
`BatchSystemKind`, which names the class of its settings. Those that come with the program are registered like
any others.
"""

import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Self

from pydantic import (
    AfterValidator,
    BaseModel,
    Field,
    GetJsonSchemaHandler,
    ModelWrapValidatorHandler,
    ValidationError,
    model_validator,
)
from pydantic_core import CoreSchema

from pilotage import entry_points
from pilotage.entry_points import BrokenPlugin
from pilotage.fabric.batch.batch_system import BatchSystem, CountsJobs, JobCounts
from pilotage.fabric.batch.head_node import HeadNode
from pilotage.fabric.batch.shell import LocalShell, Shell
from pilotage.fabric.batch.work_area import WorkAreas
from pilotage.fabric.file_section import SettingsPart
from requirements.errors import did_you_mean
from requirements.nodes.lrms_vocabulary import OF_COMMANDS, Vocabulary
from requirements.values import fold

if TYPE_CHECKING:  # costs 0.1 s, few need it
    import ssl

    import httpx

GROUP = "pilotage.batch"
#: Makes connections over TLS.
Connect = Callable[["ssl.SSLContext"], "httpx.BaseTransport"]
Flags = tuple[Annotated[str, Field(min_length=1, max_length=1000, pattern=r"^[^\x00\n]+$")], ...]


def installed_kinds() -> list[str]:
    """The kinds of all installed packages."""
    return list(entry_points.list_present(GROUP))


@cache
def load_kind(name: str) -> "BatchSystemKind":
    """An installed kind; a `ValueError` tells which ones are installed, or why this one cannot be used."""
    present = entry_points.list_present(GROUP)
    if name not in present:
        meant = did_you_mean(name, present)
        hint = f", did you mean {meant}?" if meant else ""
        raise ValueError(f"no such kind of batch system is installed, only {', '.join(present)}{hint}")
    try:
        return entry_points.load(present[name], BatchSystemKind)
    except BrokenPlugin as error:
        raise ValueError(str(error)) from error


def _load_kinds() -> Iterator[tuple[str, "BatchSystemKind"]]:
    """The installed kinds; those that cannot be loaded are left out."""
    for name in installed_kinds():
        with suppress(ValueError):
            yield name, load_kind(name)


def list_kinds_with(setting: str) -> Sequence[str]:
    """The installed kinds with a setting."""
    return [name for name, kind in _load_kinds() if setting in kind.settings.model_fields]


def _check_kind(name: str) -> str:
    load_kind(name)
    return name


class _KindOfSystem(BaseModel):
    kind: Annotated[str, AfterValidator(_check_kind)]


#: A host, or several: `*.example.org`.
HostPattern = Annotated[str, Field(pattern=r"^[A-Za-z0-9*:][A-Za-z0-9*:._-]*$", max_length=255)]


class SystemSettings(SettingsPart):
    """Settings of one batch system: those of its kind, whose class is derived from this one."""

    kind: str
    #: Hosts that a system for each CE may be filled with, such as `*.example.org`; `*`: all.
    endpoints: tuple[HostPattern, ...] = ()

    @model_validator(mode="wrap")
    @classmethod
    def _read_as_its_kind(cls, content: object, handler: ModelWrapValidatorHandler[Self]) -> Self:
        if cls is not SystemSettings or not isinstance(content, Mapping):
            return handler(content)
        settings = load_kind(_KindOfSystem.model_validate(content).kind).settings
        stated = {
            name: value
            for name, value in content.items()
            if value or name in settings.model_fields or not list_kinds_with(name)  # not what others have
        }
        return settings.model_validate(stated)  # type: ignore[return-value] # of a derived class

    @classmethod
    def __get_pydantic_json_schema__(cls, core: CoreSchema, handler: GetJsonSchemaHandler) -> dict[str, Any]:
        if cls is not SystemSettings:
            return handler(core)
        classes: list[type[SystemSettings]] = [*(kind.settings for _, kind in _load_kinds()), FormerSettings]
        return {"anyOf": [handler(each.__pydantic_core_schema__) for each in classes]}

    @property
    def job_directory(self) -> Path | None:
        """Where its jobs' files lie; None: nowhere on this side."""
        return None

    @property
    def languages(self) -> tuple[Vocabulary, ...]:
        """The vocabularies of the flags that it takes from the service; none: it takes no flags."""
        return ()

    def check_flags(self, flags: Iterable[str], *, queue: str = "") -> None:
        """Raise a `ValueError` for flags, or a batch queue, with which no job could be followed."""

    @property
    def is_remote(self) -> bool:
        """Whether its jobs are given to the server of a CE, which has them and their files."""
        return False

    def lets_jobs_read(self, _file: Path, /) -> bool:
        """Whether its jobs may read what this account can, and see a file."""
        return False


def _check_absolute(path: Path) -> Path:
    if not path.is_absolute():
        raise ValueError(f"{path} is not absolute")
    return path


AbsolutePath = Annotated[Path, AfterValidator(_check_absolute)]


class DirectorySettings(SystemSettings):
    """Settings of a batch system that keeps files of its jobs in a directory."""

    directory: AbsolutePath  #: where its jobs' files lie; its nodes have to see it, too

    @property
    def job_directory(self) -> Path | None:
        """Where its jobs' files lie."""
        return self.directory


class CommandSettings(DirectorySettings):
    """Settings of a batch system that is used by commands, here or on a head node."""

    environment: dict[str, str] = Field(default_factory=dict)  #: of its commands
    flags: Flags = ()  #: arguments of every submission
    ssh: HeadNode | None = None  #: none: the commands are on this host

    @property
    def unset(self) -> tuple[str, ...]:
        """Variables of the environment that its commands do not get."""
        return ()

    @property
    def languages(self) -> tuple[Vocabulary, ...]:
        """The vocabularies of the flags that it takes from the service."""
        return OF_COMMANDS

    def lets_jobs_read(self, file: Path, /) -> bool:
        """Unless another account logs in, its jobs may read what is on a disk with their files."""
        if self.ssh is not None or self.job_directory is None:
            return False
        try:
            return file.stat().st_dev == self.job_directory.stat().st_dev
        except OSError:  # not made yet, or away
            return False


class FormerSettings(CommandSettings):
    """Settings of a kind that lists their names, as in release 1.0. Deprecated by a class of its own."""

    takes_flags: ClassVar[bool] = True
    directory: AbsolutePath | None = None  # type: ignore[assignment] # which such a kind may not need
    cores: int | None = Field(default=None, ge=1)
    memory: int | None = Field(default=None, ge=1)  #: MB
    options: dict[str, Any] = Field(default_factory=dict)  #: which the kind checks

    @property
    def languages(self) -> tuple[Vocabulary, ...]:
        """The vocabularies of the flags that it takes from the service."""
        return OF_COMMANDS if self.takes_flags else ()


def find_missing(content: Mapping[str, object]) -> str | None:
    """The first setting that these lack, beside those that are wrong; None: they lack none."""
    try:
        SystemSettings.model_validate(content)
    except ValidationError as error:
        missing = (each["loc"] for each in error.errors() if each["type"] == "missing")
        return next((str(place[0]) for place in missing if len(place) == 1), None)
    return None


def list_private_paths(secrets: Iterable[Path], systems: Iterable[SystemSettings]) -> tuple[Path, ...]:
    """What jobs must not see on nodes that have it: files with secrets, and directories of batch jobs.

    Of a file it is the directory: a hidden file that is replaced, as tokens are, is not hidden any more from
    jobs that run, and neither is one that did not exist when they began. It is the file alone where jobs need
    what is beside it: in the root, a directory of the root such as /etc, and that of the CA certificates.
    """
    used = list(systems)
    files = [*secrets, *(path for each in used for path in each.secret_files)]
    directories = [each.job_directory for each in used if each.job_directory is not None]
    found = [*directories, *map(_find_private_directory, files)]
    return tuple(dict.fromkeys(found))


def _find_private_directory(file: Path) -> Path:
    parent = file.absolute().parent
    is_needed = len(parent.parts) <= len(("/", "etc")) or parent == _GRID_SECURITY
    return file.absolute() if is_needed else parent


_GRID_SECURITY = Path("/etc/grid-security")


#: In settings, the name of a CE of the resource tree and its endpoint.
_CE, _ENDPOINT = "{ce}", "{endpoint}"
#: What an endpoint may be: others than who runs the director write it.
_ADDRESS = re.compile(r"[A-Za-z0-9\[][A-Za-z0-9._:/@\[\]%~+-]*", re.ASCII)


#: Its host, alone: none that begins with the name of a user, which looks like a host.
_HOST = re.compile(r"(?:\[([0-9A-Fa-f:.]+)\]|([A-Za-z0-9._-]+))(?::\d{1,5})?(?:/.*)?", re.ASCII)


def is_template(told: SystemSettings) -> bool:
    """Whether settings are for many CEs: they contain the name or the endpoint of one as a placeholder."""
    return any(_has_placeholders(told))


def lacks_endpoints(told: SystemSettings) -> bool:
    """Whether the tree alone decides where secrets are sent: an admin of a site can state an own host."""
    return bool(told.secret_files) and not told.endpoints and any(_has_placeholders(told, "directory"))


def fill_template(told: SystemSettings, ce: str, endpoint: str) -> SystemSettings:
    """The settings of one CE; a `ValueError` if its name or endpoint is none for them."""
    if ce in (".", "..") or not _ADDRESS.fullmatch(endpoint):
        raise ValueError(f"{ce!r} with the Endpoint {endpoint!r} is no CE that settings can be filled with")
    if told.endpoints:
        has_ce, has_endpoint = _has_placeholders(told, "directory")
        for address in [ce] * has_ce + [endpoint] * has_endpoint:
            _require_allowed(address, told.endpoints)
    return type(told).model_validate(_fill(told.model_dump(exclude_unset=True), ce, endpoint))


def _has_placeholders(told: SystemSettings, *left_out: str) -> tuple[bool, bool]:
    """Whether settings contain the name of a CE, and its endpoint, as placeholders."""
    text = told.model_dump_json(exclude={"dialect", *left_out})
    return _CE in text, _ENDPOINT in text


def _require_allowed(address: str, endpoints: Iterable[str]) -> None:
    found = _HOST.fullmatch(address)
    host = fold(found[1] or found[2]) if found else ""
    if not host or not any(fnmatchcase(host, fold(pattern)) for pattern in endpoints):
        raise ValueError(f"{address!r} is none of the endpoints {', '.join(endpoints)} of its system")


def _fill(value: Any, ce: str, endpoint: str) -> Any:
    if isinstance(value, str):
        return value.replace(_CE, ce).replace(_ENDPOINT, endpoint)
    if isinstance(value, Path):
        return Path(_fill(str(value), ce, endpoint))
    if isinstance(value, tuple):
        return tuple(_fill(each, ce, endpoint) for each in value)
    if isinstance(value, dict):
        return {
            name: _fill(each, ce, endpoint) if name != "dialect" else each for name, each in value.items()
        }
    return value


@dataclass(frozen=True, slots=True, kw_only=True)
class Connections:
    """How batch systems connect to what is behind them; their check puts faults between."""

    stack: ExitStack  #: closes them
    wrap: Callable[[Shell], Shell] = lambda shell: shell
    wrap_http: Callable[[Connect], Connect] = lambda connect: connect
    _remote: dict[str, Shell] = field(default_factory=dict)  #: by host and environment, with what is unset

    def shell(self, settings: SystemSettings) -> Shell:
        """The shell for the commands of a batch system; over SSH all with the same settings share one."""
        if not isinstance(settings, CommandSettings):
            return self.wrap(LocalShell())
        if settings.ssh is None:
            return self.wrap(LocalShell(environment=settings.environment, unset=settings.unset))
        from pilotage.fabric.batch.ssh_shell import SshShell  # costs 0.3 s, few need it

        key = f"{settings.model_dump_json(include={'ssh', 'environment'})}{settings.unset}"
        if key not in self._remote:
            remote = SshShell(settings.ssh, environment=settings.environment, unset=settings.unset)
            self.stack.callback(remote.close)
            self._remote[key] = remote
        return self.wrap(self._remote[key])

    def areas(self, settings: SystemSettings) -> WorkAreas:
        """The work areas of the jobs of a batch system."""
        return WorkAreas(directory=str(settings.job_directory), shell=self.shell(settings))


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchSystemKind:
    """A kind of batch system: its settings, and how it is opened."""

    open: Callable[[Any, Connections], BatchSystem]  #: takes an object of the class `settings`
    settings: type[SystemSettings] = CommandSettings
    takes_queue_list: bool = False  #: a job can be given to several queues, separated by commas
    carries_files: bool = False  #: its systems are `CarriesFiles`
    only_queue: str | None = None  #: the name of its one queue; None: a site names them
    #: Deprecated: names of settings, as in release 1.0, instead of a class.
    needed: tuple[str, ...] | None = None
    allowed: frozenset[str] | None = None

    def __post_init__(self) -> None:
        if self.needed is not None or self.allowed is not None:
            takes_flags = self.allowed is None or "flags" in {*self.allowed, *(self.needed or ())}
            former = type("FormerSettings", (FormerSettings,), {"takes_flags": takes_flags})
            object.__setattr__(self, "settings", former)


def open_system(settings: SystemSettings, connections: Connections) -> BatchSystem:
    """The batch system that settings describe."""
    return load_kind(settings.kind).open(settings, connections)


def open_counter(
    kind: str, queues: Collection[str], dialect_content: object = None
) -> Callable[[], JobCounts]:
    """A function that counts the jobs in queues of a batch system on this host; empty: in all of them.

    It raises `BatchSystemAway`, and `ValueError` for an unknown queue.

    Raises:
        ValueError: This kind cannot count, or its settings are invalid.
    """
    if not issubclass(load_kind(kind).settings, CommandSettings):
        raise ValueError("it lists only jobs of its own account")  # noqa: TRY004 - it is what kinds do
    content: dict[str, object] = {
        "kind": kind,
        "directory": "/",
    }  # for files of jobs, of which there are none
    if dialect_content is not None:
        content["dialect"] = dialect_content
    if missing := find_missing(content):
        raise ValueError(f"it needs a {missing} (--{missing} FILE)")
    system = open_system(SystemSettings.model_validate(content), Connections(stack=ExitStack()))
    if isinstance(system, CountsJobs):
        return lambda: system.count_jobs(queues)

    def count() -> JobCounts:
        capacity = system.capacity()
        if missing := sorted(set(queues) - capacity.keys()):
            raise ValueError(f"no queue {', '.join(missing)}, there are {', '.join(sorted(capacity))}")
        chosen = [each for name, each in capacity.items() if not queues or name in queues]
        return JobCounts(
            waiting=sum(each.waiting for each in chosen), running=sum(each.running for each in chosen)
        )

    return count
