"""Jobs by whose they are and where, as a value: what questions of many kinds are narrowed to."""

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass

from sqlalchemy import ColumnElement, and_, or_, true


@dataclass(frozen=True, slots=True, kw_only=True)
class Whose:
    """Jobs, or pilots, by VO, site and owner; None asks nothing, an empty set is met by none."""

    vos: frozenset[str] | None = None
    sites: frozenset[str] | None = None
    owner: str | None = None

    def of(
        self,
        *,
        vos: frozenset[str] | None = None,
        sites: frozenset[str] | None = None,
        owner: str | None = None,
    ) -> "Whose":
        """Those of them that are asked for."""
        if None not in (owner, self.owner) and owner != self.owner:
            return NOBODYS
        owner = self.owner if owner is None else owner
        return Whose(vos=both(self.vos, vos), sites=both(self.sites, sites), owner=owner)

    def has(self, *, vo: str, owner: str, site: str) -> bool:
        """Whether a job is one of them."""
        is_there = (self.vos is None or vo in self.vos) and (self.sites is None or site in self.sites)
        return is_there and self.owner in (None, owner)

    def holds(self, other: "Whose") -> bool:
        """Whether all of the others are among them."""
        sets = ((self.vos, other.vos), (self.sites, other.sites))
        return self.owner in (None, other.owner) and all(
            own is None or (others is not None and others <= own) for own, others in sets
        )


NOBODYS = Whose(vos=frozenset())


def widest(several: Sequence[Whose]) -> tuple[Whose, ...]:
    """The same jobs without what others of these hold."""
    found: list[Whose] = []
    for each in several:
        if not any(other.holds(each) for other in found):
            found = [*(other for other in found if not each.holds(other)), each]
    return tuple(found)


def split(several: Sequence[Whose]) -> tuple[Whose, tuple[Whose, ...]]:
    """What is true of all of these jobs, and of which at least one is true besides; empty: no more.

    Nearly always there is one: then indexes carry what it says.
    """
    if len(several) == 1:
        return several[0], ()
    return (Whose(), tuple(several)) if several else (NOBODYS, ())


def clauses(
    any_of: Sequence[Whose],
    *,
    vo: ColumnElement[str],
    at: Callable[[Collection[str]], ColumnElement[bool]] | None = None,
    owner: ColumnElement[str] | None = None,
) -> list[ColumnElement[bool]]:
    """That one of these is true of a row, as a condition; none of an empty sequence.

    Args:
        any_of: Second part of `split`.
        vo: Column of the VO.
        at: The condition of being at one of some sites; None: the rows have none.
        owner: Column of the owner; None: the rows have none.
    """
    return [or_(*(_true_of(each, vo, at, owner) for each in any_of))] if any_of else []


def _true_of(
    each: Whose,
    vo: ColumnElement[str],
    at: Callable[[Collection[str]], ColumnElement[bool]] | None,
    owner: ColumnElement[str] | None,
) -> ColumnElement[bool]:
    found: list[ColumnElement[bool]] = [true()]
    if each.vos is not None:
        found.append(vo.in_(sorted(each.vos)))
    if each.sites is not None and at is not None:
        found.append(at(sorted(each.sites)))
    if each.owner is not None and owner is not None:
        found.append(owner == each.owner)
    return and_(*found)


def both(own: frozenset[str] | None, asked: frozenset[str] | None) -> frozenset[str] | None:
    """What is in two sets of names of which None is every name."""
    return asked if own is None else own if asked is None else own & asked
