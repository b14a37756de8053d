"""What the page shows of a section of the tree."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice

from cs_config import differences, edits, inline_values, show
from cs_config.configuration import Configuration
from cs_config.differences import ABSENT, Difference, Entry
from cs_config.rights import Rights
from cs_config.sections import Tree
from cs_config.versions import Version
from matcher.culprits import Kept
from pilotage.service.configuring.blames import Blamed

_SITES = ("Resources", "Sites")
#: What stands between the names of a site, a CE and a queue.
_BETWEEN = ("CEs", "Queues")
#: Values of a new section that are told one by one.
_MOST_SINGLE = 20
#: Names that lead to a site, a CE, a queue.
NODES = {3: "site", 5: "CE", 7: "queue"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Below:
    """A section below the one that is shown."""

    name: str
    path: str
    entries: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Value:
    """A value of the section that is shown."""

    name: str
    path: str
    written: str
    is_editable: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class View:
    """A section, as far as somebody may see and change it."""

    path: str
    names: tuple[str, ...]
    is_there: bool
    sections: Sequence[Below]
    values: Sequence[Value]
    is_editable: bool  #: as a text

    @property
    def site(self) -> str:
        """The site that it is of, if it is a node."""
        return self.names[2]

    @property
    def node(self) -> str | None:
        """Whether it is a site, a CE or a queue."""
        is_node = self.names[:2] == _SITES and self.names[3::2] == _BETWEEN[: len(self.names[3::2])]
        return NODES.get(len(self.names)) if is_node and self.is_there else None

    @property
    def crumbs(self) -> list[tuple[str, str]]:
        """Name and path of the sections around it, from the top."""
        return [(name, "/".join(self.names[: depth + 1])) for depth, name in enumerate(self.names)]


def of(tree: Tree, names: tuple[str, ...], rights: Rights) -> View:
    """What stands at a path of a tree that somebody sees."""
    entry = edits.at(tree, names) if names else tree
    here: Mapping[str, object] = entry if isinstance(entry, Mapping) else {}
    is_value = entry is not ABSENT and not isinstance(entry, Mapping)
    return View(
        path="/".join(names),
        names=names,
        is_there=entry is not ABSENT,
        sections=[
            Below(name=name, path="/".join((*names, name)), entries=len(below))
            for name, below in here.items()
            if isinstance(below, dict)
        ],
        values=[_value(names, entry, rights)]
        if is_value
        else [
            _value((*names, name), each, rights) for name, each in here.items() if not isinstance(each, dict)
        ],
        is_editable=not is_value and (rights.may_change(names) if names else rights.everything),
    )


def _value(names: tuple[str, ...], value: object, rights: Rights) -> Value:
    return Value(
        name=names[-1],
        path="/".join(names),
        written=inline_values.write(value),
        is_editable=rights.may_change(names),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Changed:
    """A difference as a person reads it."""

    path: str
    kind: str
    before: str | None
    after: str | None


def changes(found: Iterable[Difference]) -> list[Changed]:
    """Differences with their values as they would be written."""
    return [
        Changed(path=path, kind=each.kind.value, before=_written(before), after=_written(after))
        for each in found
        for path, before, after in _sides(each)
    ]


def _sides(difference: Difference) -> Iterator[tuple[str, Entry, Entry]]:
    """Path, before and after; of a small section that is new or gone each of its values."""
    inside = list(islice(differences.leaves(difference), _MOST_SINGLE + 1))
    if len(inside) > _MOST_SINGLE:
        yield difference.path, difference.before, difference.after
        return
    for names in inside:
        below = names[len(difference.names) :]
        yield "/".join(names), _at(difference.before, below), _at(difference.after, below)


def _at(entry: Entry, names: tuple[str, ...]) -> Entry:
    return edits.at(entry, names) if isinstance(entry, dict) else ABSENT if names else entry


def _written(entry: object) -> str | None:
    return None if entry is ABSENT else inline_values.write(entry)


@dataclass(frozen=True, slots=True, kw_only=True)
class Effective:
    """A parameter of a site, CE or queue as a VO gets it."""

    name: str
    value: str
    origin: str
    place: str  #: path at which it is written
    since: Version | None  #: None: it is written nowhere
    kept: Kept | None  #: waiting jobs that it keeps away; None: it is no parameter of a queue
    own_path: str | None  #: where the VO would write its own; None: that is not for this person


def effective(view: View, found: Iterable[Blamed], vo: str, rights: Rights) -> list[Effective]:
    """What holds at a site, CE or queue for a VO."""
    return [
        Effective(
            name=each.line.path,
            value=show.written(each.line.value),
            origin=each.line.origin,
            place=each.line.places[0] if each.line.places else view.path,
            since=each.since,
            kept=each.kept,
            own_path=_own_path(view, each, vo, rights),
        )
        for each in found
    ]


def _own_path(view: View, blamed: Blamed, vo: str, rights: Rights) -> str | None:
    names = (*view.names, "VOs", vo, *blamed.line.path.split("/"))
    return "/".join(names) if blamed.line.places and rights.may_change(names) else None


def vos_of(config: Configuration, rights: Rights) -> list[str]:
    """The VOs whose values somebody may look at."""
    return sorted(config.vos if rights.everything else rights.sees)
