"""Settings of a batch system in a configuration file, and the kinds of batch systems that are installed.

A kind is an entry point of the group `pilotage.batch`: its name is the `kind` of the settings, its object a
`BatchSystemKind`. Those that come with the program are registered like any others.
"""

import re
from collections.abc import Callable, Collection, Iterable, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Annotated, Any, Self

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, model_validator

from pilotage import entry_points
from pilotage.entry_points import BrokenPlugin
from pilotage.fabric.batch.arc import rest as arc_rest
from pilotage.fabric.batch.arc.rest import ComputingElement, Connect
from pilotage.fabric.batch.batch_system import BatchSystem, CountsJobs, JobCounts
from pilotage.fabric.batch.dialect import dialect
from pilotage.fabric.batch.dialect.dialect import Dialect, merge_dialect
from pilotage.fabric.batch.shell import LocalShell, Shell
from pilotage.fabric.batch.work_area import WorkAreas
from requirements.errors import did_you_mean
from requirements.nodes.lrms_vocabulary import OF_COMMANDS, Vocabulary

GROUP = "pilotage.batch"
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


def list_kinds_with(setting: str) -> Sequence[str]:
    """The installed kinds with a setting; those that cannot be loaded are left out."""
    found = []
    for name in installed_kinds():
        with suppress(ValueError):
            if load_kind(name).has(setting):
                found.append(name)
    return found


def _check_kind(name: str) -> str:
    load_kind(name)
    return name


class HeadNode(BaseModel):
    """A host with the batch system's commands, reached over SSH; its host key has to be known.

    What is not stated is taken from `config`, if there is one: a file like OpenSSH's `ssh_config`, with its
    `ProxyJump`, `IdentityFile` and `UserKnownHostsFile`.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    host: str = Field(min_length=1)  #: also a `Host` of `config`
    user: str | None = Field(default=None, min_length=1)
    key: Path | None = None  #: of the login, unencrypted; none: those of the agent and of `config`
    known_hosts: Path | None = None
    port: int | None = Field(default=None, ge=1, le=65_535)
    agent: Path | None = None  #: socket of an agent that holds the key
    config: Path | None = None  #: such as ~/.ssh/config

    @model_validator(mode="after")
    def _can_log_in(self) -> Self:
        if self.config is None:
            missing = [name for name in ("user", "known_hosts") if getattr(self, name) is None]
            missing += ["key or agent"] if self.key is None and self.agent is None else []
            if missing:
                raise ValueError(f"ssh: {', '.join(missing)}: required without a config")
        return self


class RemoteSchedd(BaseModel):
    """A queue manager of HTCondor elsewhere, such as that of an HTCondor-CE, entered by token."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    name: str = Field(pattern=r"^[A-Za-z0-9@._{}-]+$")  #: of an HTCondor-CE: its host
    collector: str | None = Field(
        default=None, pattern=r"^[^\s\"]+$"
    )  #: host:port; by default 9619 of the host in name
    token_file: Path  #: SciToken or WLCG token with the CE as audience; read anew for each call
    authorities: Path | None = None  #: CA certificates of the CE, a file or a directory; none: the host's

    @property
    def pool(self) -> str:
        """The address of its collector."""
        address = self.collector or self.name.rpartition("@")[2]
        return address if ":" in address else f"{address}:9619"


class SystemSettings(BaseModel):
    """Settings of one batch system."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    kind: Annotated[str, AfterValidator(_check_kind)]
    directory: Path | None = None  #: where its jobs' files lie; its nodes have to see it, too
    environment: dict[str, str] = Field(default_factory=dict)  #: of its commands
    flags: Flags = ()  #: arguments of every submission
    ssh: HeadNode | None = None  #: none: the commands are on this host
    cores: int | None = Field(default=None, ge=1)  #: of this host that may be used, for `local`
    memory: int | None = Field(default=None, ge=1)  #: MB of this host, for `local`
    #: Of `command`: all of it; of kinds with a shipped one: what differs from it.
    dialect: Dialect | None = None
    ce: ComputingElement | None = None  #: of `arc`
    schedd: RemoteSchedd | None = None  #: of `htcondor`; none: the one of this host
    options: dict[str, Any] = Field(default_factory=dict)  #: for kinds of other packages, which check them

    @property
    def secret_files(self) -> tuple[Path, ...]:
        """Files with keys and tokens for the batch system, and sockets that stand for them."""
        named = (
            *((self.ssh.key, self.ssh.agent) if self.ssh else ()),
            *((self.schedd.token_file,) if self.schedd else ()),
            *((self.ce.token_file, self.ce.certificate, self.ce.key) if self.ce else ()),
        )
        return tuple(path for path in named if path is not None)

    @model_validator(mode="before")
    @classmethod
    def _complete_dialect(cls, said: object) -> object:
        """Put the changes of a site into the dialect that is shipped for its kind."""
        if not isinstance(said, dict) or said.get("kind") not in dialect.SHIPPED:
            return said
        changes = {} if said.get("dialect") is None else said["dialect"]
        if not isinstance(changes, dict):
            return said
        return {**said, "dialect": merge_dialect(dialect.shipped_content(said["kind"]), changes)}

    @model_validator(mode="after")
    def _fits_its_kind(self) -> Self:
        kind = load_kind(self.kind)
        if missing := [name for name in kind.needed if getattr(self, name) is None]:
            raise ValueError(f"systems of the kind {self.kind} need {' and '.join(missing)}")
        for name in sorted(self.model_fields_set - {"kind"}):
            if getattr(self, name) and not kind.has(name):
                kinds = ", ".join(list_kinds_with(name))
                where = f": it is for {kinds}" if kinds else ""
                raise ValueError(f"systems of the kind {self.kind} have no {name}{where}")
        if self.directory is not None and not self.directory.is_absolute():
            raise ValueError(f"directory: {self.directory} is not absolute")
        if self.dialect is not None:
            self.dialect.check_place(self.flags, self.environment)
        if self.schedd is not None and self.ssh is not None:
            raise ValueError("schedd, ssh: a remote queue manager is entered from this host, not over SSH")
        return self


def list_private_paths(secrets: Iterable[Path], systems: Iterable[SystemSettings]) -> tuple[Path, ...]:
    """What jobs must not see on nodes that have it: files with secrets, and directories of batch jobs.

    Of a file it is the directory: a hidden file that is replaced, as tokens are, is not hidden any more from
    jobs that run, and neither is one that did not exist when they began. It is the file alone where jobs need
    what is beside it: in the root, a directory of the root such as /etc, and that of the CA certificates.
    """
    used = list(systems)
    files = [*secrets, *(path for each in used for path in each.secret_files)]
    directories = [each.directory for each in used if each.directory is not None]
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


def is_template(told: SystemSettings) -> bool:
    """Whether settings are for many CEs: they contain the name or the endpoint of one as a placeholder."""
    text = told.model_dump_json(exclude={"dialect"})
    return _CE in text or _ENDPOINT in text


def fill_template(told: SystemSettings, ce: str, endpoint: str) -> SystemSettings:
    """The settings of one CE; a `ValueError` if its name or endpoint is none for them."""
    if ce in (".", "..") or not _ADDRESS.fullmatch(endpoint):
        raise ValueError(f"{ce!r} with the Endpoint {endpoint!r} is no CE that settings can be filled with")
    return SystemSettings(
        **{name: _fill(getattr(told, name), ce, endpoint) for name in told.model_fields_set}
    )


def _fill(value: Any, ce: str, endpoint: str) -> Any:
    if isinstance(value, str):
        return value.replace(_CE, ce).replace(_ENDPOINT, endpoint)
    if isinstance(value, Path):
        return Path(_fill(str(value), ce, endpoint))
    if isinstance(value, tuple):
        return tuple(_fill(each, ce, endpoint) for each in value)
    if isinstance(value, dict):
        return {name: _fill(each, ce, endpoint) for name, each in value.items()}
    if isinstance(value, HeadNode | ComputingElement | RemoteSchedd):
        fields = {name: _fill(getattr(value, name), ce, endpoint) for name in value.model_fields_set}
        return type(value)(**fields)
    return value


@dataclass(frozen=True, slots=True, kw_only=True)
class Connections:
    """How batch systems connect to what is behind them; their check puts faults between."""

    stack: ExitStack  #: closes them
    wrap: Callable[[Shell], Shell] = lambda shell: shell
    connect: Connect = arc_rest.connect
    _remote: dict[str, Shell] = field(default_factory=dict)  #: by host and environment, with what is unset

    def shell(self, settings: SystemSettings) -> Shell:
        """The shell for the commands of a batch system; over SSH all with the same settings share one."""
        unset = () if settings.dialect is None else settings.dialect.unset
        if settings.ssh is None:
            return self.wrap(LocalShell(environment=settings.environment, unset=unset))
        from pilotage.fabric.batch.ssh_shell import SshShell  # costs 0.3 s, few need it

        key = f"{settings.model_dump_json(include={'ssh', 'environment'})}{unset}"
        if key not in self._remote:
            remote = SshShell(settings.ssh, environment=settings.environment, unset=unset)
            self.stack.callback(remote.close)
            self._remote[key] = remote
        return self.wrap(self._remote[key])

    def areas(self, settings: SystemSettings) -> WorkAreas:
        """The work areas of the jobs of a batch system."""
        return WorkAreas(directory=str(settings.directory), shell=self.shell(settings))


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchSystemKind:
    """A kind of batch system: what its settings have, and how it is opened."""

    open: Callable[[SystemSettings, Connections], BatchSystem]
    needed: tuple[str, ...] = ("directory",)  #: settings that have to be there
    allowed: frozenset[str] = frozenset({"environment", "flags", "ssh"})
    takes_queue_list: bool = False  #: a job can be given to several queues, separated by commas
    carries_files: bool = False  #: its systems are `CarriesFiles`
    languages: tuple[Vocabulary, ...] = OF_COMMANDS  #: of flags; a dialect may state another

    def has(self, setting: str) -> bool:
        """Whether its settings may contain this one."""
        return setting in self.needed or setting in self.allowed


def flag_languages(settings: SystemSettings) -> tuple[Vocabulary, ...]:
    """The vocabularies of the flags that a batch system takes from the service; none: it takes no flags."""
    kind = load_kind(settings.kind)
    if not kind.has("flags"):
        return ()
    return kind.languages if settings.dialect is None else settings.dialect.languages


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
    found = load_kind(kind)
    if "ce" in found.needed or kind == "local":
        raise ValueError("it lists only jobs of its own account")
    if "dialect" in found.needed and dialect_content is None and kind not in dialect.SHIPPED:
        raise ValueError("it needs a dialect (--dialect FILE)")
    content = {"kind": kind, "dialect": dialect_content}
    if "directory" in found.needed:
        content["directory"] = "/"  # for files of jobs, of which there are none
    settings = SystemSettings.model_validate(
        {name: each for name, each in content.items() if each is not None}
    )
    system = open_system(settings, Connections(stack=ExitStack()))
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
