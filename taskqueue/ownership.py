"""Filter of rows by VO, site and owner, shared by all searches, and the list of VOs with stored rows."""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy import ColumnElement, Connection, and_, bindparam, func, or_, select, true

from taskqueue.schema.tables import blobs, jobs, pilots


@dataclass(frozen=True, slots=True, kw_only=True)
class OwnershipFilter:
    """Conditions on jobs or pilots by VO, site and owner; None: any, an empty set: matches nothing."""

    vos: frozenset[str] | None = None
    sites: frozenset[str] | None = None
    owner: str | None = None

    def narrow(
        self,
        *,
        vos: frozenset[str] | None = None,
        sites: frozenset[str] | None = None,
        owner: str | None = None,
    ) -> "OwnershipFilter":
        """Both these and further conditions."""
        if None not in (owner, self.owner) and owner != self.owner:
            return NO_OWNER
        owner = self.owner if owner is None else owner
        return OwnershipFilter(vos=intersect(self.vos, vos), sites=intersect(self.sites, sites), owner=owner)

    def includes(self, *, vo: str, owner: str, site: str) -> bool:
        """Whether a job fulfils the conditions."""
        is_there = (self.vos is None or vo in self.vos) and (self.sites is None or site in self.sites)
        return is_there and self.owner in (None, owner)

    def contains(self, other: "OwnershipFilter") -> bool:
        """Whether every row that matches `other` matches this."""
        sets = ((self.vos, other.vos), (self.sites, other.sites))
        return self.owner in (None, other.owner) and all(
            own is None or (others is not None and others <= own) for own, others in sets
        )


NO_OWNER = OwnershipFilter(vos=frozenset())

#: Rows that a caller may see: those that match at least one of some filters.
Visible = Sequence[OwnershipFilter]
EVERY_ROW: Visible = (OwnershipFilter(),)


def drop_contained(several: Sequence[OwnershipFilter]) -> tuple[OwnershipFilter, ...]:
    """Drop filters contained in others; the union stays the same."""
    found: list[OwnershipFilter] = []
    for each in several:
        if not any(other.contains(each) for other in found):
            found = [*(other for other in found if not each.contains(other)), each]
    return tuple(found)


def split_common(several: Sequence[OwnershipFilter]) -> tuple[OwnershipFilter, tuple[OwnershipFilter, ...]]:
    """Split a union into a filter that all rows fulfil, and filters of which each row fulfils at least one.

    Usually there is only one filter: as the common part it can use indexes.
    """
    if len(several) == 1:
        return several[0], ()
    return (OwnershipFilter(), tuple(several)) if several else (NO_OWNER, ())


def match_values(wanted: Mapping[ColumnElement[Any], object]) -> list[ColumnElement[bool]]:
    """Conditions on columns, each a value or a set of them; None: no condition, an empty set: no row.

    None in a set matches rows without a value.
    """
    found: list[ColumnElement[bool]] = []
    for column, value in wanted.items():
        if isinstance(value, Collection) and not isinstance(value, str):
            stated = column.in_(sorted(each for each in value if each is not None))
            found.append(or_(stated, column.is_(None)) if None in value else stated)
        elif value is not None:
            found.append(column == value)
    return found


def match_visible(
    visible: Visible,
    *,
    vo: ColumnElement[str],
    at: Callable[[Collection[str]], ColumnElement[bool]] | None = None,
    owner: ColumnElement[str] | None = None,
) -> list[ColumnElement[bool]]:
    """The condition that a row is visible; without a filter none is. Arguments as of `match_any`."""
    return match_any(visible or (NO_OWNER,), vo=vo, at=at, owner=owner)


def match_any(
    any_of: Sequence[OwnershipFilter],
    *,
    vo: ColumnElement[str],
    at: Callable[[Collection[str]], ColumnElement[bool]] | None = None,
    owner: ColumnElement[str] | None = None,
) -> list[ColumnElement[bool]]:
    """The condition that a row matches at least one filter of the second part of `split_common`, if any.

    `at` makes the condition of being at one of some sites; None, as for `owner`: the rows have none.
    """
    return [or_(*(_build_condition(each, vo, at, owner) for each in any_of))] if any_of else []


def _build_condition(
    each: OwnershipFilter,
    vo: ColumnElement[str],
    at: Callable[[Collection[str]], ColumnElement[bool]] | None,
    owner: ColumnElement[str] | None,
) -> ColumnElement[bool]:
    found = match_values({vo: each.vos} if owner is None else {vo: each.vos, owner: each.owner})
    if each.sites is not None and at is not None:
        found.append(at(sorted(each.sites)))
    return and_(true(), *found)


def intersect(own: frozenset[str] | None, other: frozenset[str] | None) -> frozenset[str] | None:
    """Intersection of two sets of names; None is the set of all names."""
    return other if own is None else own if other is None else own & other


_COLUMNS: tuple[ColumnElement[str], ...] = (jobs.c.vo, blobs.c.vo, pilots.c.vo)

#: The next VO in index order: a skip scan, since the tables are large and the VOs few.
NEXT_VO = tuple(select(func.min(vo)).where(vo > bindparam("after")) for vo in _COLUMNS)


def list_vos(conn: Connection) -> frozenset[str]:
    """VOs with jobs, archives or pilots."""
    found: set[str] = set()
    for statement in NEXT_VO:
        last = ""
        while (vo := conn.execute(statement, {"after": last}).scalar_one()) is not None:
            found.add(vo)
            last = vo
    return frozenset(found)
