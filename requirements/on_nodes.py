"""The rules for a record where the nodes of a queue differ: what some, all or none of them fulfil."""

from collections.abc import Iterator
from dataclasses import dataclass

from requirements.declarations import Declaration, Declarations, compared
from requirements.nodes import NodeAttributes, Option
from requirements.record import Record
from requirements.rules import ReasonKind, mismatch
from requirements.values import Value, fold


@dataclass(frozen=True, slots=True, kw_only=True)
class _Asked:
    """One entry of a record about an attribute of the nodes."""

    name: str
    wanted: Value
    declaration: Declaration | None

    def why_not(self, option: Option) -> ReasonKind | None:
        return mismatch(self.wanted, option, self.declaration)


def impossible(
    record: Record, declarations: Declarations, nodes: NodeAttributes
) -> Iterator[tuple[str, Value, ReasonKind]]:
    """The entries that no node fulfils, by themselves or together with others about the same attribute."""
    for parameter, entries in _by_parameter(record, declarations, nodes).items():
        options = nodes.options(parameter)
        # Whoever has all that is asked fulfils whatever can be fulfilled at all.
        tried = (_everything(entries),) if options is None else options
        alone = [(each, kind) for each in entries if (kind := _never(each, tried)) is not None]
        if not alone and not any(all(each.why_not(one) is None for each in entries) for one in tried):
            alone = [(each, ReasonKind.NOT_AMONG) for each in entries]
        yield from ((each.name, each.wanted, kind) for each, kind in alone)


def left(record: Record, declarations: Declarations, nodes: NodeAttributes) -> Record | None:
    """The entries that some nodes may fulfil and others not; None: there are none."""
    by_parameter = _by_parameter(record, declarations, nodes)
    names = {
        each.name
        for parameter, entries in by_parameter.items()
        for each in entries
        if not _always(each, nodes.options(parameter))
    }
    values = tuple(entry for entry in record.values if entry[0] in names)
    return Record(values=values) if values else None


def _by_parameter(
    record: Record, declarations: Declarations, nodes: NodeAttributes
) -> dict[str, list[_Asked]]:
    found: dict[str, list[_Asked]] = {}
    for name, wanted in record.values:
        declaration = declarations.get(name)
        parameter = compared(name, declaration)
        if parameter in nodes:
            asked = _Asked(name=name, wanted=wanted, declaration=declaration)
            found.setdefault(fold(parameter), []).append(asked)
    return found


def _everything(entries: list[_Asked]) -> Option:
    if len(entries) == 1:
        return entries[0].wanted
    return tuple(
        item
        for each in entries
        for item in (each.wanted if isinstance(each.wanted, tuple) else (each.wanted,))
    )


def _never(asked: _Asked, options: tuple[Option, ...]) -> ReasonKind | None:
    """Why none of the options would do; None: one would."""
    kinds = {asked.why_not(option) for option in options}
    if None in kinds:
        return None
    only = kinds.pop()
    return only if not kinds else ReasonKind.NOT_AMONG


def _always(asked: _Asked, options: tuple[Option, ...] | None) -> bool:
    return options is not None and all(asked.why_not(option) is None for option in options)
