"""Configuration file of a director: the service, the VOs, the batch systems, the queues and the brokers."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Self, TypeVar

from pydantic import BaseModel, Field, ValidationError, field_validator, model_validator

from pilotage.fabric.batch import settings
from pilotage.fabric.batch.reliable import Evidence
from pilotage.fabric.batch.settings import SystemSettings
from pilotage.fabric.director.targets import (
    BROKER,
    Address,
    Broker,
    DirectorOptions,
    FileSection,
    QueueTarget,
    Seconds,
    SlotSettings,
)
from pilotage.fabric.pilot import arguments
from requirements.errors import InvalidInput, Problem, did_you_mean
from requirements.values import fold

BrokerName = Annotated[str, Field(pattern=f"^{BROKER.pattern}$")]


def _list_broker_contradictions(told: "DirectorFile", file: str) -> list[Problem]:
    """What is right by itself, and not together with the rest of the file."""
    takes_list = {name: settings.load_kind(each.kind).takes_queue_list for name, each in told.systems.items()}
    wrong = []
    for name, broker in sorted(told.brokers.items()):
        if broker.system not in takes_list:
            message = f"there is no system {broker.system}, only {', '.join(sorted(takes_list))}"
            wrong.append(Problem(path=f"brokers/{name}/system", message=message, file=file))
        elif broker.entry is None and not takes_list[broker.system]:
            message = f"{broker.system} takes no list of queues; say which one takes all pilots"
            wrong.append(Problem(path=f"brokers/{name}/entry", message=message, file=file))
        wrong += [
            Problem(path=f"brokers/{name}/vos", message=f"{vo} is not in vos", file=file)
            for vo in sorted(broker.vos.difference(map(fold, told.vos)))
        ]
    return wrong


_URL = r"^https?://[^\s]+$"


class InvalidDirector(InvalidInput):
    """The configuration file of a director is invalid."""

    code = "config_error"


class DirectorQueue(SlotSettings):
    """A queue of the resource tree with its batch queue."""

    queue: Address  #: `Site/CE/Queue`
    system: str
    batch_queue: str | None = Field(default=None, min_length=1)  #: none: the last part of `queue`

    def to_target(self) -> QueueTarget:
        """As the director uses it."""
        return self.target(self.queue, self.system, self.batch_queue or self.queue.rpartition("/")[2])


class Vo(FileSection):
    """A VO to send pilots for."""

    token_file: Path  #: of a director's token for it, readable by its owner only


class DirectorFile(DirectorOptions):
    """The configuration file of a director."""

    url: str = Field(pattern=_URL)
    vos: dict[str, Vo] = Field(min_length=1)
    systems: dict[str, SystemSettings] = Field(min_length=1)
    queues: tuple[DirectorQueue, ...] = ()  #: that pilots are sent straight to
    brokers: dict[BrokerName, Broker] = Field(default_factory=dict)  #: that pick the queue
    every: Seconds = 60
    gone: Evidence = Evidence()
    pilot: tuple[str, ...] = ()  #: further arguments of every pilot
    pilot_url: str | None = Field(default=None, pattern=_URL)  #: of the service, as nodes see it; none: `url`
    proxy: str | None = None  #: HTTP proxy to the service, or `none`; none stated: that of the environment
    authorities: Path | None = None  #: CA certificates (PEM) for pilots; none: those of the nodes

    @field_validator("pilot")
    @classmethod
    def _is_understood_by_pilots(cls, words: tuple[str, ...]) -> tuple[str, ...]:
        arguments.check_words(words)
        return words

    @model_validator(mode="after")
    def _sends_pilots_somewhere(self) -> Self:
        if not self.queues and not self.brokers:
            raise ValueError("queues, brokers: one of them has to say where pilots are sent")
        return self


_Model = TypeVar("_Model", bound=BaseModel)


def read_file(content: object, file: str) -> DirectorFile:
    """What a file says, already parsed; `InvalidDirector` with every problem."""
    told = validate_file(DirectorFile, content, file, InvalidDirector)
    problems = list_contradictions(told.systems, told.queues, file) + _list_broker_contradictions(told, file)
    if problems:
        raise InvalidDirector(problems)
    return told


def validate_file(model: type[_Model], content: object, file: str, invalid: type[InvalidInput]) -> _Model:
    """The parsed content of a file as settings; an error of the class `invalid` with every problem."""
    if not isinstance(content, Mapping):
        raise invalid([Problem(path=file, message=f"holds no settings by name, but {content!r:.60}")])
    try:
        return model.model_validate(content)
    except ValidationError as error:
        names = _names_within(model)
        problems = [
            _problem(tuple(each["loc"]), each["type"], each["msg"], each["input"], file, names)
            for each in error.errors()
        ]
        raise invalid(problems) from None


def _names_within(model: type[BaseModel]) -> list[str]:
    schema = model.model_json_schema()
    parts = [schema, *schema.get("$defs", {}).values()]
    return sorted({name for part in parts for name in part.get("properties", ())})


def _problem(
    where: tuple[int | str, ...], kind: str, message: str, seen: object, file: str, names: Sequence[str]
) -> Problem:
    path = "/".join(map(str, where)) or "settings"
    if kind in ("extra_forbidden", "unexpected_keyword_argument"):
        return Problem(
            path=path, message="unknown setting", suggestion=did_you_mean(str(where[-1]), names), file=file
        )
    what = message.removeprefix("Value error, ")
    shown = "" if isinstance(seen, Mapping) else f", not {seen!r:.80}"
    return Problem(path=path, message=f"{what}{shown}", file=file)


def list_contradictions(
    systems: Mapping[str, SystemSettings], queues: Sequence[DirectorQueue], file: str
) -> list[Problem]:
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
