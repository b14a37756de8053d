"""What a director is told: a file with the service, the VOs, the batch systems and the queues."""

from collections.abc import Mapping, Sequence
from datetime import timedelta
from pathlib import Path
from typing import Annotated, Self, TypeVar

from pydantic import BaseModel, Field, ValidationError, field_validator, model_validator

from pilotage.fabric.batch import settings
from pilotage.fabric.batch.evidence import Evidence
from pilotage.fabric.batch.settings import Kind, System
from pilotage.fabric.director import told_brokers
from pilotage.fabric.director.experience import Pause
from pilotage.fabric.director.outlets import Habits, Outlet
from pilotage.fabric.director.posts import NAME
from pilotage.fabric.director.slots import Address, Slot
from pilotage.fabric.director.slots import Settings as _Told
from pilotage.fabric.director.told_brokers import BrokerName, ToldBroker
from pilotage.fabric.pilot import arguments
from requirements.errors import InvalidInput
from requirements.problem import Problem
from requirements.suggestion import did_you_mean

_URL = r"^https?://[^\s]+$"
Seconds = Annotated[float, Field(gt=0, le=30 * 86_400)]


class InvalidDirector(InvalidInput):
    """The file of a director does not say what it should."""

    code = "config_error"


#: Those that a job can be given to for one of several queues, separated by commas.
_TAKE_LISTS = frozenset({Kind.SLURM, Kind.GRID_ENGINE})


class Queue(Slot):
    """A queue of the resource tree, and the batch queue behind it."""

    queue: Address  #: `Site/CE/Queue`
    system: str
    batch_queue: str | None = Field(default=None, min_length=1)  #: none: the last part of `queue`

    def outlet(self) -> Outlet:
        """As the director uses it."""
        return Outlet(
            queue=self.queue,
            system=self.system,
            batch_queue=self.batch_queue or self.queue.rpartition("/")[2],
            resources=self.resources,
            flags=self.flags,
        )


class Vo(_Told):
    """A VO that pilots are sent for."""

    token_file: Path  #: of a director's token for it, readable by its owner only


class Proof(_Told):
    """What it takes to believe something of a batch job."""

    listings: int = Field(default=3, ge=2)
    seconds: Seconds = 300

    def evidence(self) -> Evidence:
        """As it is looked for."""
        return Evidence(listings=self.listings, seconds=self.seconds)


class Told(_Told):
    """All of it."""

    url: str = Field(pattern=_URL)
    name: str = Field(pattern=f"^{NAME.pattern}$")
    vos: dict[str, Vo] = Field(min_length=1)
    systems: dict[str, System] = Field(min_length=1)
    queues: tuple[Queue, ...] = ()  #: that pilots are sent straight to
    brokers: dict[BrokerName, ToldBroker] = Field(default_factory=dict)  #: that pick the queue
    every: Seconds = 60
    at_once: int = Field(default=100, ge=1)
    soon: Seconds = 900
    pause: Seconds = 120
    longest_pause: Seconds = 3600
    keep_output: Seconds = 6 * 3600
    gone: Proof = Proof()
    orphans: Proof = Proof(listings=5, seconds=1800)  #: that a batch job of ours is nobody's pilot
    pilot: tuple[str, ...] = ()  #: further arguments of every pilot
    pilot_url: str | None = Field(default=None, pattern=_URL)  #: of the service, as nodes see it; none: `url`
    authorities: Path | None = None  #: CA certificates (PEM) for pilots; none: those of the nodes

    @field_validator("pilot")
    @classmethod
    def _is_understood_by_pilots(cls, words: tuple[str, ...]) -> tuple[str, ...]:
        arguments.check(words)
        return words

    @model_validator(mode="after")
    def _sends_pilots_somewhere(self) -> Self:
        if not self.queues and not self.brokers:
            raise ValueError("queues, brokers: one of them has to say where pilots are sent")
        return self

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
            orphans=self.orphans.evidence(),
        )

    def evidence(self) -> Evidence:
        """When a batch job is believed to be gone."""
        return self.gone.evidence()


_Model = TypeVar("_Model", bound=BaseModel)
#: What settings of a file may be within.
PARTS: tuple[type[BaseModel], ...] = (Queue, ToldBroker, Proof, *settings.PARTS)


def read(content: object, file: str) -> Told:
    """What a file says, already parsed.

    Raises:
        InvalidDirector: with every problem.
    """
    told = checked(Told, content, file, InvalidDirector)
    takes_list = {name: system.kind in _TAKE_LISTS for name, system in told.systems.items()}
    of_brokers = told_brokers.contradictions(told.brokers, takes_list=takes_list, vos=told.vos, file=file)
    if problems := contradictions(told.systems, told.queues, file) + of_brokers:
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
