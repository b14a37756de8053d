"""Groups of queues with equal parameters for a VO, so that requirements are evaluated once per group."""

from collections.abc import Mapping
from dataclasses import dataclass
from hashlib import sha256
from typing import Any, Final

import rfc8785

from cs_config import gc_pause
from cs_config.cache import derived
from cs_config.tree.address import QueueAddress
from cs_config.tree.configuration import Configuration
from cs_config.tree.inheritance import Level, Parameter
from cs_config.tree.node_attributes import FORWARDING
from requirements.classad.work import LargestSizes
from requirements.nodes.node_attributes import NO_NODE_ATTRIBUTES, NodeAttributes, Option
from requirements.nodes.site_mapping import SiteMapping
from requirements.values import MAX_TEXT, Scalar, Value, fold, to_nfc

#: Version of the algorithm of `digest`, stored beside the digests; raise it with every change. Digests of
#: another release are not comparable, even for the same configuration.
ALGORITHM: Final = 2


#: A value of a node that may have any.
_LONGEST_FACT: Final = "x" * MAX_TEXT


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueClass:
    """Queues that a VO may use and that have equal effective parameters for it."""

    digest: str  #: SHA-256 of the parameters; the same in every process and release
    values: Mapping[str, Value]  #: the ad: the parameters, spelled as in one of the queues, and GLUE names
    queues: tuple[QueueAddress, ...]  #: sorted
    nodes: NodeAttributes = NO_NODE_ATTRIBUTES  #: attributes that differ between the nodes behind the queues
    forwarding: SiteMapping | None = (
        None  #: translation of node attributes for the batch systems of the queues
    )


def find_class(config: Configuration, vo: str, address: QueueAddress) -> QueueClass | None:
    """The class of a queue; None if the VO may not use it now."""
    return _classes_by_queue(config, vo).get(address)


@derived
def largest_sizes(config: Configuration, vo: str) -> LargestSizes:
    """The sizes of the largest values of each name that an expression of the VO may read."""
    sizes = LargestSizes()
    for each in queue_classes(config, vo):
        for name, value in each.values.items():
            sizes.add(name, value)
        for name in each.nodes.names:
            for option in each.nodes.options(name) or (_LONGEST_FACT,):
                sizes.add(name, option)
    return sizes


@derived
def _classes_by_queue(config: Configuration, vo: str) -> Mapping[QueueAddress, QueueClass]:
    return {queue: each for each in queue_classes(config, vo) for queue in each.queues}


@derived
@gc_pause.pause_collection()
def queue_classes(config: Configuration, vo: str) -> tuple[QueueClass, ...]:
    """The classes of all queues that the VO may use now, by their first queue."""
    members: dict[str, list[QueueAddress]] = {}
    contents = _Contents(fold(vo))
    known: dict[object, str | None] = {}  # by the content of all levels of a queue; few contents differ
    for address in config.addresses:
        key: object = address
        if not config.has_address(vo):
            key = tuple(map(contents.number, config.levels[address]))
        if key not in known:
            known[key] = _digest(config, address, vo) if config.usable(address, vo) else None
        if (name := known[key]) is not None:
            members.setdefault(name, []).append(address)
    return tuple(
        QueueClass(
            digest=name,
            values=config.ad(queues[0], vo),
            nodes=config.node_attributes(queues[0], vo),
            forwarding=config.forwarding(queues[0], vo),
            queues=tuple(queues),
        )
        for name, queues in members.items()
    )


class _Contents:
    """Numbers for levels: equal for levels with the same settings for a VO, in the same order."""

    def __init__(self, vo: str) -> None:
        self._vo = vo
        self._of_level: dict[str, int] = {}  # by path
        self._of_content: dict[object, int] = {}

    def number(self, level: Level) -> int:
        known = self._of_level.get(level.path)
        if known is None:
            content = tuple(map(_content, level.settings(self._vo).items()))
            known = self._of_content.setdefault(content, len(self._of_content))
            self._of_level[level.path] = known
        return known


def _content(setting: tuple[str, Parameter | None]) -> object:
    """The significant content of a setting; as text, in which True is not 1."""
    name, parameter = setting
    if parameter is None:
        return name
    value = parameter.value
    return name, repr(value if parameter.is_own else (value, parameter.node_attribute, parameter.forwarding))


def _digest(config: Configuration, address: QueueAddress, vo: str) -> str:
    """Digest of the parameters; GLUE names follow from them, except those that follow from the address."""
    values = config.ad(address, vo) if config.has_address(vo) else config.values(address, vo)
    section = config.parameters(address, vo).get(FORWARDING)
    rules = str(section.value) if section is not None and section.forwarding is not None else ""
    return digest(values, config.node_attributes(address, vo), rules)


def digest(values: Mapping[str, Value], nodes: NodeAttributes = NO_NODE_ATTRIBUTES, spoken: str = "") -> str:
    """SHA-256 of the parameters of a queue; equal only where no requirement can distinguish two queues.

    Values count exactly: type, order and case of letters. Names are compared without case, and texts in
    Unicode normal form (NFC), as in every expression.
    """
    exact: dict[str, Any] = {fold(name): _exact(value) for name, value in values.items()}
    if nodes:
        # No parameter has a `/` in its name.
        exact["/forwarding"] = spoken
        exact["/nodes"] = {
            fold(name): nodes.describe(name) if options is None else _options(options)
            for name, options in nodes.declared
        }
    return sha256(rfc8785.dumps(exact)).hexdigest()


def _options(options: tuple[Option, ...]) -> list[str]:
    """The options as texts, which can be sorted."""
    return sorted(rfc8785.dumps(None if option is None else _exact(option)).decode() for option in options)


def _exact(value: Value) -> Any:
    """The value as JSON that distinguishes a list of one from its value, and 5.0 from 5."""
    return [_exact_scalar(item) for item in value] if isinstance(value, tuple) else _exact_scalar(value)


def _exact_scalar(scalar: Scalar) -> Any:
    if isinstance(scalar, str):
        return to_nfc(scalar)
    return {"real": repr(scalar)} if isinstance(scalar, float) else scalar
