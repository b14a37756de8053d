"""What a director is told: a file with the service, the VOs, the batch systems and the queues."""

from collections.abc import Mapping, Sequence
from datetime import timedelta
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Self, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from pilotage.fabric.batch import dialect, shipped_dialects
from pilotage.fabric.batch.batch_system import Resources
from pilotage.fabric.batch.dialect import Dialect, changed
from pilotage.fabric.batch.idealizer import Evidence
from pilotage.fabric.director.experience import Pause
from pilotage.fabric.director.outlets import Habits, Outlet
from pilotage.fabric.director.posts import NAME
from requirements.errors import InvalidInput
from requirements.problem import Problem
from requirements.suggestion import did_you_mean

_URL = r"^https?://[^\s]+$"
Seconds = Annotated[float, Field(gt=0, le=30 * 86_400)]
Flags = tuple[Annotated[str, Field(min_length=1, max_length=1000, pattern=r"^[^\x00\n]+$")], ...]
Address = Annotated[str, Field(pattern=r"^[A-Za-z0-9._:@+-]+(/[A-Za-z0-9._:@+-]+){2}$")]


class InvalidDirector(InvalidInput):
    """The file of a director does not say what it should."""

    code = "config_error"


class _Told(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class Kind(StrEnum):
    """The batch systems that are known."""

    SLURM = "slurm"
    GRID_ENGINE = "gridengine"
    HTCONDOR = "htcondor"
    PBS = "pbs"
    LSF = "lsf"
    COMMAND = "command"
    LOCAL = "local"


#: Those that are told in a dialect.
SPOKEN = frozenset({Kind.PBS, Kind.LSF, Kind.COMMAND})


class HeadNode(_Told):
    """A host that has the batch system's commands, reached over SSH; its key has to be known."""

    host: str = Field(min_length=1)
    user: str = Field(min_length=1)
    key: Path
    known_hosts: Path
    port: int = Field(default=22, ge=1, le=65_535)


class System(_Told):
    """A batch system."""

    kind: Kind
    directory: Path  #: where its jobs' files lie; its nodes have to see it, too
    environment: dict[str, str] = Field(default_factory=dict)  #: of its commands
    flags: Flags = ()  #: arguments of every submission
    ssh: HeadNode | None = None  #: none: the commands are on this host
    cores: int | None = Field(default=None, ge=1)  #: of this host that may be used, for `local`
    memory: int | None = Field(default=None, ge=1)  #: MB of this host, for `local`
    #: Of `command`: all of it; of `pbs` and `lsf`: what differs from the shipped one.
    dialect: Dialect | None = None

    @model_validator(mode="before")
    @classmethod
    def _speaks_the_shipped_dialect(cls, said: object) -> object:
        """Put the changes of a site into the dialect that is shipped for its kind."""
        if not isinstance(said, dict) or said.get("kind") not in shipped_dialects.NAMES:
            return said
        changes = said.get("dialect", {})
        if not isinstance(changes, dict):
            return said
        return {**said, "dialect": changed(shipped_dialects.content(said["kind"]), changes)}

    @model_validator(mode="after")
    def _fits_its_kind(self) -> Self:
        if not self.directory.is_absolute():
            raise ValueError(f"directory: {self.directory} is not absolute")
        is_local = self.kind is Kind.LOCAL
        if is_local and (self.cores is None or self.memory is None):
            raise ValueError("a local system needs cores and memory: so much of this host may be used")
        if is_local and (self.ssh or self.flags or self.environment):
            raise ValueError("a local system has no ssh, flags or environment")
        if not is_local and (self.cores or self.memory):
            raise ValueError(f"cores and memory are for local systems; give those of a {self.kind} queue")
        if (self.dialect is not None) is not (self.kind in SPOKEN):
            raise ValueError(
                "a command system needs a dialect"
                if self.kind is Kind.COMMAND
                else f"a {self.kind} system has no dialect: it is for {', '.join(sorted(SPOKEN))}"
            )
        return self


class Queue(_Told):
    """A queue of the resource tree, and the batch queue behind it."""

    queue: Address  #: `Site/CE/Queue`
    system: str
    batch_queue: str | None = Field(default=None, min_length=1)  #: none: the last part of `queue`
    cores: int = Field(default=1, ge=1)
    memory: int | None = Field(default=None, ge=1)  #: MB of a slot
    wall_time: int | None = Field(default=None, ge=60)  #: seconds of a slot
    gpus: int = Field(default=0, ge=0)
    whole_node: bool = False
    flags: Flags = ()

    def outlet(self) -> Outlet:
        """As the director uses it."""
        return Outlet(
            queue=self.queue,
            system=self.system,
            batch_queue=self.batch_queue or self.queue.rpartition("/")[2],
            resources=Resources(
                cores=self.cores,
                memory=self.memory,
                wall_time=self.wall_time,
                gpus=self.gpus,
                whole_node=self.whole_node,
            ),
            flags=self.flags,
        )


class Vo(_Told):
    """A VO that pilots are sent for."""

    token_file: Path  #: of a director's token for it, readable by its owner only


class Proof(_Told):
    """What it takes to believe that a batch job is gone."""

    listings: int = Field(default=3, ge=2)
    seconds: Seconds = 300


class Told(_Told):
    """All of it."""

    url: str = Field(pattern=_URL)
    name: str = Field(pattern=f"^{NAME.pattern}$")
    vos: dict[str, Vo] = Field(min_length=1)
    systems: dict[str, System] = Field(min_length=1)
    queues: tuple[Queue, ...] = Field(min_length=1)
    every: Seconds = 60
    at_once: int = Field(default=100, ge=1)
    soon: Seconds = 900
    pause: Seconds = 120
    longest_pause: Seconds = 3600
    keep_output: Seconds = 6 * 3600
    gone: Proof = Proof()
    pilot: tuple[str, ...] = ()  #: further arguments of every pilot
    pilot_url: str | None = Field(default=None, pattern=_URL)  #: of the service, as nodes see it; none: `url`
    authorities: Path | None = None  #: CA certificates (PEM) for pilots; none: those of the nodes

    def habits(self) -> Habits:
        """How the director is to go about it."""
        return Habits(
            name=self.name,
            at_once=self.at_once,
            pause=Pause(
                first=timedelta(seconds=self.pause),
                longest=timedelta(seconds=max(self.pause, self.longest_pause)),
            ),
            soon=timedelta(seconds=self.soon),
            keep_output=timedelta(seconds=self.keep_output),
        )

    def evidence(self) -> Evidence:
        """When a batch job is believed to be gone."""
        return Evidence(listings=self.gone.listings, seconds=self.gone.seconds)


_Model = TypeVar("_Model", bound=BaseModel)
#: What settings of a file may be within.
PARTS: tuple[type[BaseModel], ...] = (System, Queue, HeadNode, Proof, *dialect.PARTS)


def read(content: object, file: str) -> Told:
    """What a file says, already parsed.

    Raises:
        InvalidDirector: with every problem.
    """
    told = checked(Told, content, file, InvalidDirector)
    if problems := contradictions(told.systems, told.queues, file):
        raise InvalidDirector(problems)
    return told


def checked(
    model: type[_Model],
    content: object,
    file: str,
    invalid: type[InvalidInput],
    parts: Sequence[type[BaseModel]] = PARTS,
) -> _Model:
    """What a file says, read as the settings that `model` knows.

    Args:
        model: All of it.
        content: Already parsed.
        file: Its name.
        invalid: What is raised.
        parts: Models within `model`.

    Raises:
        InvalidInput: Of the class `invalid`, with every problem.
    """
    if not isinstance(content, Mapping):
        raise invalid([Problem(path=file, message=f"holds no settings by name, but {content!r:.60}")])
    try:
        return model.model_validate(content)
    except ValidationError as error:
        known: list[type[BaseModel]] = [model, *parts]
        names = sorted({name for each in known for name in each.model_fields})
        problems = [
            _problem(tuple(each["loc"]), each["type"], each["msg"], each["input"], file, names)
            for each in error.errors()
        ]
        raise invalid(problems) from None


def _problem(
    where: tuple[int | str, ...], kind: str, message: str, seen: object, file: str, names: Sequence[str]
) -> Problem:
    path = "/".join(map(str, where)) or "settings"
    if kind == "extra_forbidden":
        return Problem(
            path=path, message="unknown setting", suggestion=did_you_mean(str(where[-1]), names), file=file
        )
    what = message.removeprefix("Value error, ")
    shown = "" if isinstance(seen, Mapping) else f", not {seen!r:.80}"
    return Problem(path=path, message=f"{what}{shown}", file=file)


def contradictions(systems: Mapping[str, System], queues: Sequence[Queue], file: str) -> list[Problem]:
    """What is right by itself, and not together."""
    wrong = [
        Problem(
            path=f"queues/{number}/system",
            message=f"there is no system {each.system}, only {', '.join(sorted(systems))}",
            suggestion=did_you_mean(each.system, sorted(systems)),
            file=file,
        )
        for number, each in enumerate(queues)
        if each.system not in systems
    ]
    names = [each.queue for each in queues]
    wrong += [
        Problem(path=f"queues/{number}/queue", message=f"{name} is named before", file=file)
        for number, name in enumerate(names)
        if name in names[:number]
    ]
    return wrong
