"""The tree as CE ads: for each queue what it says, and the GLUE names that follow.

What merely follows is named under `Derived`, so that an import of the ads gives the tree they come from.
"""

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from cs_config import ce_ads, freshness, glue, inheritance, restrictions
from cs_config.address import QueueAddress
from cs_config.configuration import Configuration
from cs_config.errors import PathNotFound
from requirements.errors import InvalidInput
from requirements.grammar import read_expression
from requirements.source import Source
from requirements.syntax import KEYWORDS
from requirements.values import Scalar, Value, fold

_IDENTIFIER = re.compile(r"[A-Za-z_][A-Za-z0-9_]*", re.ASCII)
_ESCAPED = re.compile(r'[\x00-\x1f\x7f"\\]')


@dataclass(frozen=True, slots=True, kw_only=True)
class Exported:
    """Ads, and what could not be said in them."""

    text: str
    queues: tuple[QueueAddress, ...]
    left_out: tuple[str, ...]  #: paths of parameters that no ad can hold
    narrowed: tuple[
        str, ...
    ]  #: queues, each with the VOs that are kept out: an ad has no values of single VOs


def export(config: Configuration, path: str = "", vo: str = "") -> Exported:
    """The ads of all queues at and below a path, as they are for a VO (empty: for nobody in particular).

    Args:
        config: With what has expired: an ad says itself until when it counts.
        path: `Resources/Sites/…` or `Site`, `Site/CE`, `Site/CE/Queue`; empty: everything.
        vo: Whose effective parameters.

    Raises:
        PathNotFound: There is no queue.
    """
    queues = tuple(_below(config, path))
    if not queues:
        raise PathNotFound(path or "Resources/Sites", config.suggest(path))
    left_out = tuple(
        f"{queue}/{name}"
        for queue in queues
        for name, each in config.parameters(queue, vo).items()
        if each.node_attribute is not None
    )
    kept_out = {queue: () if vo else tuple(_kept_out(config, queue)) for queue in queues}
    text = "".join(_ad(config, queue, vo, kept_out[queue]) for queue in queues)
    narrowed = tuple(f"{queue}: {', '.join(vos)}" for queue, vos in kept_out.items() if vos)
    return Exported(text=text, queues=queues, left_out=left_out, narrowed=narrowed)


def _kept_out(config: Configuration, queue: QueueAddress) -> Iterator[str]:
    """The VOs that the queue restricts by values of their own, which an ad for everybody does not have."""
    for vo in sorted(config.vos):
        own = (name for level in config.levels[queue] for name in level.by_vo.get(vo, {}))
        if any(map(restrictions.keeps_out, own)):
            yield vo


def _restrictions(
    config: Configuration, queue: QueueAddress, vo: str, kept_out: tuple[str, ...]
) -> Iterator[tuple[str, Value]]:
    """What the ad has to say so that it lets in nobody whom the tree keeps out."""
    levels = config.levels[queue]
    if not inheritance.enabled(levels, vo):  # of the levels any one switches off, the nearest is no matter
        yield restrictions.ENABLED, False
    if kept_out:
        plain = config.values(queue, "").items()
        listed = next((value for name, value in plain if fold(name) == "vo"), None)
        vos = tuple(sorted(config.vos)) if listed is None else tuple(map(str, inheritance.as_tuple(listed)))
        yield "VO", tuple(each for each in vos if fold(each) not in kept_out)


def _below(config: Configuration, path: str) -> Iterator[QueueAddress]:
    names = [name for name in path.split("/") if name]
    if names[:2] == ["Resources", "Sites"]:
        names = [name for place, name in enumerate(names[2:]) if place % 2 == 0]
    for queue in config.addresses:
        if [queue.site, queue.ce, queue.queue][: len(names)] == names:
            yield queue


def _ad(config: Configuration, queue: QueueAddress, vo: str, kept_out: tuple[str, ...]) -> str:
    narrower = dict(_restrictions(config, queue, vo, kept_out))
    folded = set(map(fold, narrower))
    values = config.values(queue, vo)
    stated = {name: value for name, value in values.items() if fold(name) not in folded} | narrower
    parameters = {fold(name): each for name, each in config.parameters(queue, vo).items()}
    derived = {name: value for name, value in glue.ad(stated, queue).items() if name not in stated}
    headers: dict[str, Value] = {ce_ads.ID: f"{queue.ce}/{queue.queue}", ce_ads.SITE: queue.site}
    headers |= {
        name: parameters[name].value for name in sorted(freshness.TIMES, reverse=True) if name in parameters
    }
    if derived:
        headers[ce_ads.DERIVED] = tuple(derived)
    expressions = ce_ads.expressions({fold(name): value for name, value in stated.items()})
    info = {name: value for name, value in {**stated, **derived}.items() if name != ce_ads.EXPRESSIONS}
    lines = [f"  {_name(name)} = {_written(value)};" for name, value in headers.items()]
    inside = (f"    {_name(name)} = {_said(name, value, expressions)};" for name, value in info.items())
    return "\n".join(["[", *lines, f"  {ce_ads.INFO} = [", *inside, "  ]", "]", ""])


def _said(name: str, value: Value, expressions: Iterable[str]) -> str:
    if isinstance(value, str) and fold(name) in expressions and _is_expression(value):
        return value
    return _written(value)


def _is_expression(text: str) -> bool:
    try:
        read_expression(Source(text=text, path=""))
    except InvalidInput:
        return False
    return True


def _written(value: Value) -> str:
    if isinstance(value, tuple):
        return f"{{ {', '.join(map(_scalar, value))} }}" if value else "{ }"
    return _scalar(value)


def _scalar(value: Scalar) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    return f'"{_escaped(value)}"' if isinstance(value, str) else repr(value)


def _name(name: str) -> str:
    if _IDENTIFIER.fullmatch(name) and name.lower() not in KEYWORDS:
        return name
    return "'" + _escaped(name).replace("'", r"\047") + "'"


def _escaped(text: str) -> str:
    return _ESCAPED.sub(lambda sign: f"\\{ord(sign[0]):03o}", text)
