"""Cache of the admission rules of queues, with a shortcut for a configuration without any."""

from collections.abc import Iterator
from typing import cast

from cs_config.tree import admission, glue
from cs_config.tree.address import QueueAddress
from cs_config.tree.admission import Admission
from cs_config.tree.configuration import Configuration
from requirements.values import Value, fold


def read_admission(config: Configuration, address: QueueAddress, vo: str) -> Admission | None:
    """The admission rules of a queue for the jobs of a VO; None if it has none.

    Raises:
        KeyError: There is no such queue.
    """
    if not is_configured(config):
        return None
    key = (__name__, f"{address} {fold(vo)}")
    if key not in config.derived:
        config.derived[key] = admission.read_admission(glue.build_ad(config.values(address, vo), address))
    return cast(Admission | None, config.derived[key])


def is_configured(config: Configuration) -> bool:
    """Whether any queue has admission rules."""
    key = (__name__, "")
    if key not in config.derived:
        config.derived[key] = _is_configured(config)
    return cast(bool, config.derived[key])


def _is_configured(config: Configuration) -> bool:
    stated = {
        name
        for level in config.nodes.values()
        for settings in (level.plain, *level.by_vo.values())
        for name in settings
    }
    return not stated.isdisjoint(
        {admission.REQUIREMENTS, *admission.DEFAULT_CHECKS, *_list_expressions(config)}
    )


def _list_expressions(config: Configuration) -> Iterator[str]:
    for level in config.nodes.values():
        for settings in (level.plain, *level.by_vo.values()):
            parameter = settings.get(admission.CHECKS)
            value: Value = () if parameter is None else parameter.value
            yield from (fold(str(name)) for name in (value if isinstance(value, tuple) else (value,)))
