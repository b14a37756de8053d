"""Configuration file of a director: the service, the VOs, the batch systems, the queues and the brokers.

The queues are listed, or are those of a part of the resource tree: then the name of their CE or its `CEType`
is that of the batch system, and settings with `{ce}` or `{endpoint}` make one system for each CE.
"""

import logging
import shlex
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, ClassVar, Self, TypeVar

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    Field,
    ValidationError,
    field_validator,
    model_validator,
)

from pilotage.fabric.batch import settings
from pilotage.fabric.batch.batch_system import Evidence, ReliableSystem
from pilotage.fabric.batch.settings import Connections, SystemSettings
from pilotage.fabric.director import targets
from pilotage.fabric.director.targets import (
    BROKER,
    Address,
    Broker,
    DirectorOptions,
    QueueTarget,
    SlotSettings,
)
from pilotage.fabric.file_section import FileSection, Seconds
from pilotage.fabric.pilot import arguments
from pilotage.fabric.pilot.payload.isolation import COMMAND, NONE, STRONGEST
from pilotage.fabric.pilot.service import transport
from requirements import input_faults
from requirements.errors import InvalidInput, Problem, did_you_mean
from requirements.input_faults import InputFault
from requirements.values import fold

log = logging.getLogger(__name__)

BrokerName = Annotated[str, Field(pattern=f"^{BROKER.pattern}$")]


def _list_broker_contradictions(told: "DirectorFile", file: str) -> list[Problem]:
    """Contradictions between a broker and the rest of the file."""
    takes_list = {name: settings.load_kind(each.kind).takes_queue_list for name, each in told.systems.items()}
    wrong = []
    for name, broker in sorted(told.brokers.items()):
        if broker.system not in takes_list:
            message = f"there is no system {broker.system}, only {', '.join(sorted(takes_list))}"
            wrong.append(Problem(path=f"brokers/{name}/system", message=message, file=file))
        elif broker.entry is None and not takes_list[broker.system]:
            message = f"{broker.system} takes no list of queues; state which one takes all pilots"
            wrong.append(Problem(path=f"brokers/{name}/entry", message=message, file=file))
        if message := _find_forbidden(told.systems.get(broker.system), broker.flags):
            wrong.append(Problem(path=f"brokers/{name}/flags", message=message, file=file))
        wrong += [
            Problem(path=f"brokers/{name}/vos", message=f"{vo} is not in vos", file=file)
            for vo in sorted(broker.vos.difference(map(fold, told.vos)))
        ]
    return wrong


def _check_address(url: str) -> str:
    transport.split_address(url)
    return url


#: The address of the service in a file of a site.
ServiceUrl = Annotated[str, AfterValidator(_check_address)]


class InvalidDirector(InvalidInput):
    """The configuration file of a director is invalid."""

    code = "config_error"


class DirectorQueue(SlotSettings):
    """A queue of the resource tree with its batch queue."""

    queue: Address  #: `Site/CE/Queue`
    system: str
    batch_queue: str | None = Field(default=None, min_length=1)  #: none: the last part of `queue`

    def to_target(self) -> QueueTarget:
        """The target that the director uses."""
        return self.target(self.queue, self.system, self.batch_queue or self.queue.rpartition("/")[2])


Names = Annotated[
    tuple[str, ...], BeforeValidator(lambda value: (value,) if isinstance(value, str) else value)
]


class TreeSelection(FileSection):
    """A part of the resource tree: the queues there that the VOs of the director may use."""

    site: Names = ()  #: none: every site
    ce: Names = ()  #: none: every CE


class Vo(FileSection):
    """A VO to send pilots for."""

    token_file: Path  #: of a director's token for it, readable by its owner only


class SiteFile(FileSection):
    """What the files of directors and gateways have in common."""

    FORMER: ClassVar[Mapping[str, str]] = {"every": "polling_time", "gone": "lost_after"}

    url: ServiceUrl
    systems: dict[str, SystemSettings] = Field(min_length=1)
    lost_after: Evidence = Evidence()  #: that a batch job is gone
    proxy: str | None = None  #: HTTP proxy to the service, or `none`; none stated: that of the environment
    authorities: Path | None = None  #: CA certificates (PEM), a file or a directory; none: the host's

    def open_systems(self, connections: Connections) -> dict[str, ReliableSystem]:
        """The batch systems of the file by name."""
        return {
            name: ReliableSystem(
                name=name, system=settings.open_system(each, connections), evidence=self.lost_after
            )
            for name, each in self.systems.items()
        }


class DirectorFile(DirectorOptions, SiteFile):
    """The configuration file of a director; with `authorities`, which its pilots get, too, a file."""

    FORMER: ClassVar[Mapping[str, str]] = {**DirectorOptions.FORMER, **SiteFile.FORMER}

    vos: dict[str, Vo] = Field(min_length=1)
    #: That pilots are sent straight to; in a file also `{from_tree: …, listed: […]}`.
    queues: tuple[DirectorQueue, ...] = ()
    from_tree: TreeSelection | None = None  #: further queues, those of a part of the tree
    brokers: dict[BrokerName, Broker] = Field(default_factory=dict)  #: that pick the queue
    polling_time: Seconds = 60  #: between two cycles
    pilot: tuple[str, ...] = ()  #: further arguments of every pilot
    pilot_url: ServiceUrl | None = None  #: of the service, as nodes see it; none: `url`

    @model_validator(mode="before")
    @classmethod
    def _split_queues(cls, said: object) -> object:
        """Take `queues: {from_tree: …, listed: […]}` apart."""
        if not isinstance(said, dict) or not isinstance(said.get("queues"), dict):
            return said
        queues = dict(said["queues"])
        parts = {"queues": queues.pop("listed", ()), "from_tree": queues.pop("from_tree", {})}
        return {**said, **parts, **queues}  # a word that is none of both is an unknown setting

    @field_validator("pilot")
    @classmethod
    def _is_understood_by_pilots(cls, words: tuple[str, ...]) -> tuple[str, ...]:
        arguments.check_words(words)
        return words

    @model_validator(mode="after")
    def _sends_pilots_somewhere(self) -> Self:
        if not self.queues and not self.brokers and self.from_tree is None:
            raise ValueError("queues, brokers: one of them has to state where pilots are sent")
        return self


def isolation_words(told: DirectorFile) -> tuple[str, ...]:
    """Arguments of pilots that keep their jobs from what is the director's and from the secrets of others.

    They come before those of the file, which wins.
    """
    tokens = (each.token_file for each in told.vos.values())
    hidden = settings.list_private_paths(tokens, told.systems.values())
    return (f"--isolation={STRONGEST}", *(f"--hide={path}" for path in hidden))


def list_isolation_risks(told: DirectorFile) -> list[str]:
    """How jobs may get at pilots and jobs of others by what the file states of the isolation of jobs."""
    stated = arguments.find_isolation((f"--isolation={STRONGEST}", *told.pilot))
    if stated == NONE:
        return [f"pilot: --isolation={NONE}: each job can do all that the account of its pilot may"]
    hidden = ", ".join(str(each.job_directory) for each in told.systems.values() if each.job_directory)
    if stated == COMMAND and hidden:
        return [f"pilot: --isolation={COMMAND}: jobs can read secrets of pilots unless it hides {hidden}"]
    return []


def list_open_systems(told: DirectorFile) -> list[str]:
    """Systems whose secrets are sent to any host that the admin of a site states for a CE."""
    return [
        f"systems/{name}: its secrets go to any host that the admin of a site states: state the hosts, such "
        'as endpoints: ["*.example.org"], or endpoints: ["*"] where that is meant'
        for name, each in sorted(told.systems.items())
        if told.from_tree is not None and settings.lacks_endpoints(each)
    ]


def list_shared_accounts(told: DirectorFile) -> list[str]:
    """Batch systems where pilots of several VOs have one account."""
    vos = {name: _list_vos(told, name) for name in sorted(told.systems)}
    return [
        f"systems/{name}: pilots of {', '.join(of_system)} have one account there: where jobs are not "
        "isolated, as on nodes without user namespaces, a job of one VO can take jobs of the others; a "
        "director with an account of its own for each VO prevents that"
        for name, of_system in vos.items()
        if len(of_system) > 1
    ]


def _list_vos(told: DirectorFile, system: str) -> list[str]:
    """The VOs whose pilots a batch system gets."""
    brokers = [each for each in told.brokers.values() if each.system == system]
    is_for_all = told.from_tree is not None or any(each.system == system for each in told.queues)
    if is_for_all or any(not each.vos for each in brokers):
        return sorted(told.vos)
    allowed = frozenset[str]().union(*(each.vos for each in brokers))
    return sorted(vo for vo in told.vos if fold(vo) in allowed)


def add_tree_queues(
    told: DirectorFile, found: Mapping[str, Mapping[str, object]], file: str, *, needs_all: bool = False
) -> DirectorFile:
    """A file with all queues of its selection listed, each with the batch system of its CE.

    A queue whose parameters are wrong is left out, with a warning: the admins of its site write them, and
    those of other sites must get their pilots all the same.

    Args:
        told: The file.
        found: The parameters of queues of the tree, by queue.
        file: Its name, for messages.
        needs_all: Refuse the file if a queue would be left out.
    """
    if told.from_tree is None:
        return told
    listed = {each.queue: each for each in told.queues}
    systems = {name: each for name, each in told.systems.items() if not settings.is_template(each)}
    problems: list[Problem] = []
    for queue, parameters in found.items():
        if queue in listed or not _is_selected(queue, told.from_tree):
            continue
        try:
            name, system = _find_system(queue, parameters, told.systems)
            _require_same(name, system, systems, listed.values())
            systems[name] = system
            listed[queue] = _tree_entry(queue, parameters, name, system)
        except ValueError as error:  # pydantic's too
            message = f"{queue}: {str(error).splitlines()[-1].strip()}"
            problems.append(Problem(path="queues/from_tree", message=message, file=file))
    if not listed and not told.brokers and not problems:
        where = told.from_tree.model_dump_json(exclude_defaults=True)
        message = f"no queue of the tree that the VOs of the director may use is at {where}"
        problems.append(Problem(path="queues/from_tree", message=message, file=file))
    if problems and (needs_all or not (listed or told.brokers)):
        raise InvalidDirector(problems)
    for problem in problems:
        log.warning("%s: gets no pilots: %s", file, problem.message)
    return told.model_copy(update={"queues": tuple(listed.values()), "from_tree": None, "systems": systems})


def _is_selected(queue: str, selection: TreeSelection) -> bool:
    site, ce, _ = queue.split("/")
    return all(
        not chosen or fold(name) in map(fold, chosen)
        for name, chosen in ((site, selection.site), (ce, selection.ce))
    )


def _find_system(
    queue: str, parameters: Mapping[str, object], systems: Mapping[str, SystemSettings]
) -> tuple[str, SystemSettings]:
    """The batch system of a CE: of its name, else of its `CEType`, else the only one of the file."""
    ce, kind = queue.split("/")[1], _read_text(parameters, "CEType") or ""
    by_name = {fold(name): name for name in systems}
    only = next(iter(systems)) if len(systems) == 1 else None
    name = by_name.get(fold(ce)) or by_name.get(fold(kind)) or only
    if name is None:
        allowed = ", ".join(sorted(systems))
        kind = kind or "unknown"
        raise ValueError(f"there is no system for CEType {kind} and none called {ce}, only {allowed}")
    told = systems[name]
    if not settings.is_template(told):
        return name, told
    return ce, settings.fill_template(told, ce, _read_text(parameters, "Endpoint") or ce)


def _require_same(
    name: str, system: SystemSettings, systems: Mapping[str, SystemSettings], listed: Iterable[DirectorQueue]
) -> None:
    """Raise a `ValueError` if a system of this name, of a CE of an earlier queue, has other settings."""
    if systems.get(name, system) != system:
        other = next((each.queue for each in listed if each.system == name), "the file")
        raise ValueError(f"{other} has a CE of this name with another Endpoint")


def _tree_entry(
    queue: str, parameters: Mapping[str, object], name: str, system: SystemSettings
) -> DirectorQueue:
    batch_queue = _read_text(parameters, "BatchQueue", "CEQueueName")
    if batch_queue is None:
        batch_queue = settings.load_kind(system.kind).only_queue
    flags = tuple(shlex.split(_read_text(parameters, "SubmitOptions") or ""))
    if message := _find_forbidden(system, flags, queue=batch_queue or ""):
        raise ValueError(message)
    return DirectorQueue(queue=queue, system=name, batch_queue=batch_queue, flags=flags)


def _read_text(parameters: Mapping[str, object], *names: str) -> str | None:
    value = targets.read_parameter(parameters, *names)
    return None if value is None else str(value)


def _find_forbidden(system: SystemSettings | None, flags: Sequence[str] = (), *, queue: str = "") -> str:
    """Why no job with these flags could be followed in this batch queue; empty: it could."""
    try:
        if system is not None:
            system.check_flags(flags, queue=queue)
    except ValueError as error:
        return str(error)
    return ""


_Model = TypeVar("_Model", bound=BaseModel)


def read_file(content: object, file: str) -> DirectorFile:
    """Read the parsed content of a file; `InvalidDirector` lists every problem."""
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
        schema = model.model_json_schema()
        found = sorted(
            _list_places(schema, schema.get("$defs", {}), ()), key=lambda each: -each[1].count("/")
        )
        places = dict(found)  # of each name the shortest
        faults = input_faults.list_faults(error.errors())
        raise invalid([_describe_fault(each, file, places) for each in faults]) from None


def _list_places(
    schema: Any, definitions: Mapping[str, Any], path: tuple[str, ...]
) -> Iterator[tuple[str, str]]:
    """The names of all settings in a part of a JSON schema, each with a place; a name of data is `…`."""
    if isinstance(schema, list):
        for part in schema:
            yield from _list_places(part, definitions, path)
    elif isinstance(schema, dict):
        if (name := str(schema.get("$ref", "")).rpartition("/")[2]) in definitions:
            others = {other: each for other, each in definitions.items() if other != name}
            yield from _list_places(definitions[name], others, path)
        for name, below in schema.get("properties", {}).items():
            yield name, "/".join((*path, name))
            yield from _list_places(below, definitions, (*path, name))
        for form in ("anyOf", "oneOf", "allOf"):
            yield from _list_places(schema.get(form), definitions, path)
        for form in ("items", "additionalProperties"):
            yield from _list_places(schema.get(form), definitions, (*path, "…"))


def _describe_fault(fault: InputFault, file: str, places: Mapping[str, str]) -> Problem:
    path = "/".join(map(str, fault.location)) or "settings"
    if not fault.is_unknown_name:
        return Problem(path=path, message=fault.message, suggestion=fault.suggestion, file=file)
    name = str(fault.location[-1])
    if kinds := settings.list_kinds_with(name):
        message = f"only systems of the kind {', '.join(kinds)} have such a setting"
        return Problem(path=path, message=message, file=file)
    if name in places:
        message = f"is no setting here, it belongs at {places[name]}"
        return Problem(path=path, message=message, file=file)
    return Problem(path=path, message="unknown setting", suggestion=did_you_mean(name, places), file=file)


def list_contradictions(
    systems: Mapping[str, SystemSettings], queues: Sequence[DirectorQueue], file: str
) -> list[Problem]:
    """Contradictions between batch systems and queues that are valid by themselves."""
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
    wrong += [
        Problem(path=f"queues/{number}/{setting}", message=message, file=file)
        for number, each in enumerate(queues)
        for setting, flags, queue in (
            ("flags", each.flags, ""),
            ("batch_queue", (), each.to_target().batch_queue),
        )
        if (message := _find_forbidden(systems.get(each.system), flags, queue=queue))
    ]
    names = [each.queue for each in queues]
    wrong += [
        Problem(path=f"queues/{number}/queue", message=f"{name} is named before", file=file)
        for number, name in enumerate(names)
        if name in names[:number]
    ]
    return wrong
