"""Tuning of Python's garbage collector for long-lived trees and indexes of millions of objects."""

import gc
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Final

#: Number of objects surviving a full collection from which on they are frozen.
_MANY: Final = 50_000
#: Threshold of the youngest generation. Python's default (700 or 2,000) is the size of a few requests, which
#: are still running.
_YOUNG: Final = 20_000


@contextmanager
def pause_collection() -> Iterator[None]:
    """Disable collection temporarily: it takes a third of the time of loading a large grid."""
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()


def collect_seldom() -> None:
    """Make full collections rarer in this process, and exclude (freeze) the objects that survived one.

    A full collection stops all threads: half a second in a matcher of ten thousand classes, every few seconds
    of busy traffic with Python's defaults. Frozen objects are still released by reference counting. Cycles
    among them are released when half as many objects have been frozen since as survived the last complete
    collection; that triggers the next complete one. Python with an incremental collector (3.14) has no full
    collections, so nothing is frozen.
    """
    if not any(isinstance(each, _FreezeAfterFull) for each in gc.callbacks):
        gc.callbacks.append(_FreezeAfterFull())
        gc.set_threshold(_YOUNG, *gc.get_threshold()[1:])


class _FreezeAfterFull:
    """Callback of Python before and after each collection."""

    def __init__(self) -> None:
        self._at_first = 0  #: survivors of the last complete collection
        self._since = 0  #: objects frozen after it
        self._before = gc.get_freeze_count()  #: objects frozen before all, such as those of modules

    def __call__(self, phase: str, info: Mapping[str, int]) -> None:
        if info["generation"] < 2:
            return
        if phase == "start":
            if self._since > (self._before + self._at_first) / 2:
                gc.unfreeze()
                self._before = self._at_first = self._since = 0
        elif (lived := len(gc.get_objects(generation=2))) > _MANY:
            gc.freeze()
            if self._at_first:
                self._since += lived
            else:
                self._at_first = lived
