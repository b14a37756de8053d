"""Queues that are the same for a VO, so that requirements are evaluated once for all of them."""

from collections.abc import Mapping
from dataclasses import dataclass
from hashlib import sha256
from typing import cast

import rfc8785

from cs_config.address import QueueAddress
from cs_config.configuration import Configuration
from requirements.values import Value, fold, normal


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueClass:
    """Queues that a VO may use and that have equal effective parameters for it."""

    digest: str  #: SHA-256 of the parameters; the same from any process and release
    values: Mapping[str, Value]  #: the ad: the parameters, as one of the queues spells them, and GLUE names
    queues: tuple[QueueAddress, ...]  #: sorted


def queue_classes(config: Configuration, vo: str) -> tuple[QueueClass, ...]:
    """The classes of all queues that the VO may use now, by their first queue."""
    key = (__name__, fold(vo))
    found = config.derived.get(key)
    if found is None:
        found = config.derived[key] = _computed(config, vo)
    return cast(tuple[QueueClass, ...], found)


def _computed(config: Configuration, vo: str) -> tuple[QueueClass, ...]:
    members: dict[str, list[QueueAddress]] = {}
    for address in config.addresses:
        if config.usable(address, vo):
            members.setdefault(_digest(config, address, vo), []).append(address)
    return tuple(
        QueueClass(digest=name, values=config.ad(queues[0], vo), queues=tuple(queues))
        for name, queues in members.items()
    )


def _digest(config: Configuration, address: QueueAddress, vo: str) -> str:
    """Of the parameters: GLUE names follow from them, unless it is the address that they follow from."""
    return digest(config.ad(address, vo) if config.by_address(vo) else config.values(address, vo))


def digest(values: Mapping[str, Value]) -> str:
    """SHA-256 of parameters; equal for those that no requirement can tell apart."""
    normalised = {fold(name): _json(normal(value)) for name, value in values.items()}
    return sha256(rfc8785.dumps(normalised)).hexdigest()


def _json(value: Value) -> str | bool | int | float | list[str | bool | int | float]:
    return list(value) if isinstance(value, tuple) else value
