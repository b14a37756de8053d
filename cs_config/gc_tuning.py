"""Python's garbage collector, out of the way of what stays: trees and indexes of millions of objects."""

import gc
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Final

#: Objects that outlived a full collection; so many are not looked through again each time.
_MANY: Final = 50_000
#: New objects after which the young ones are looked through. Python's own 700 or 2,000 are those of a few
#: requests, which are under way still.
_YOUNG: Final = 20_000


@contextmanager
def pause_collection() -> Iterator[None]:
    """Have nothing looked through meanwhile; a third of the time to load a large grid."""
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()


def collect_seldom() -> None:
    """From now on this process collects less often, and spares what has outlived a full collection.

    No thread gets on while all is looked through: half a second in a matcher of ten thousand classes, which
    Python would do again every few seconds of busy traffic. What is spared still goes when nothing refers to
    it any more; circles among it go when half as much has been spared anew as outlived the last look at all,
    which is when the next one comes. A Python that collects in small steps (3.14) has no looks at all, so
    nothing to spare.
    """
    if not any(isinstance(each, _FreezeAfterFull) for each in gc.callbacks):
        gc.callbacks.append(_FreezeAfterFull())
        gc.set_threshold(_YOUNG, *gc.get_threshold()[1:])


class _FreezeAfterFull:
    """Called by Python before and after each collection."""

    def __init__(self) -> None:
        self._at_first = 0  #: objects that outlived the last look at all
        self._since = 0  #: those that were spared after it

    def __call__(self, phase: str, info: Mapping[str, int]) -> None:
        if info["generation"] < 2:
            return
        if phase == "start":
            if self._since > self._at_first / 2:
                gc.unfreeze()
                self._at_first = self._since = 0
        elif (lived := len(gc.get_objects(generation=2))) > _MANY:
            gc.freeze()
            if self._at_first:
                self._since += lived
            else:
                self._at_first = lived
