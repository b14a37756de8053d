"""Parameters that a change sets in vain: no waiting job asks for them, or each that does misses them."""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from cs_config import known_parameters
from cs_config.address import QueueAddress
from cs_config.differences import ABSENT, Difference, leaves
from matcher import looked_at
from matcher.parts import Part
from matcher.preview.shifts import Shifts
from matcher.preview.touched import Touched
from matcher.shop_window import parts_of
from requirements.values import fold
from taskqueue.waiting_classes import WaitingClass

#: Sections whose entries are no parameters.
_NO_PARAMETERS = frozenset({"Throttle", "Forwarding"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Vain:
    """A parameter that helps no job that waits."""

    name: str
    queues: int  #: that it is set for
    jobs: int  #: waiting ones that ask for it, and miss it there; 0: none asks


#: Names of parameters, as they are spelled, with the queues that may get them.
_Set = Mapping[str, set[QueueAddress]]


def names_set(differences: Iterable[Difference], touched: Touched, vo: str) -> _Set:
    """The parameters that a change sets for a VO."""
    found: defaultdict[str, set[QueueAddress]] = defaultdict(set)
    for difference in differences:
        for names in leaves(difference) if difference.after is not ABSENT else ():
            if names[:2] == ("Resources", "Sites") and not _NO_PARAMETERS.intersection(names):
                found[names[-1]] |= touched.of(names, vo)
    return {name: queues for name, queues in found.items() if queues}


def of(shifts: Shifts, names: _Set, waiting: Iterable[WaitingClass]) -> Iterator[Vain]:
    """The parameters of a VO's queues that are set in vain, in front of its waiting classes."""
    asked: defaultdict[str, dict[object, tuple[Part, int]]] = defaultdict(dict)
    for each in waiting:
        for part in parts_of(each.asked, each.requirements):
            for looked in looked_at.parameters(part, shifts.now.declarations):
                jobs = asked[looked].get(part.key, (part, 0))[1]
                asked[looked][part.key] = part, jobs + each.jobs
    for name, queues in names.items():
        if found := _vain(name, queues, asked.get(fold(name), {}).values(), shifts):
            yield found


def _vain(
    name: str, queues: set[QueueAddress], asked: Iterable[tuple[Part, int]], shifts: Shifts
) -> Vain | None:
    here = shifts.now
    mask = sum(1 << number for number, queue in enumerate(here.queues) if queue.address in queues)
    asked = list(asked)
    if not mask or (not asked and known_parameters.is_known(fold(name))):
        return None
    if any(here.fulfilling([part]) & mask for part, _ in asked):
        return None
    return Vain(name=name, queues=mask.bit_count(), jobs=sum(jobs for _, jobs in asked))
