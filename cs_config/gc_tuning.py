"""Tuning of Python's garbage collector for long-lived trees and indexes of millions of objects."""

import gc
import math
import sys
from collections.abc import Mapping
from typing import Final

#: Number of objects surviving a full collection from which on they are frozen.
_MANY: Final = 50_000
#: Thresholds of the generations. Python's default for the youngest (700 or 2,000 objects) is the size of a
#: few requests, which are still running; a collection of 100,000 objects stops all threads for some 10 ms.
_FEW: Final = 10_000, 3, 3
#: Growth of the memory in use since the last complete collection that calls for the next one.
_GROWN: Final = 1.5
#: Part of that memory of which as many objects have to be frozen before it is looked at again: that takes a
#: millisecond for each million.
_LOOKED_AT: Final = 1 / 16


def collect_seldom() -> None:
    """Make full collections rarer in this process, and exclude (freeze) the objects that survived one.

    A full collection stops all threads: half a second in a matcher of ten thousand classes, every few seconds
    of busy traffic with Python's defaults. Frozen objects are still released by reference counting. Cycles
    among them are released when half as much memory again is in use as after the last complete collection:
    that triggers the next one. What comes and goes without cycles, however much, triggers none. Python with
    an incremental collector (3.14) has no full collections, so nothing is frozen.
    """
    if not any(isinstance(each, _FreezeAfterFull) for each in gc.callbacks):
        gc.callbacks.append(_FreezeAfterFull())
        gc.set_threshold(*_FEW)


def _count_oldest() -> int:
    """Number of objects in the oldest generation, counted without a switch to another thread.

    The list refers to tuples that other threads are just filling, which Python fails to complete then: while
    there is one, no code of Python runs.
    """
    return next(map(len, map(gc.get_objects, (2,))))


class _FreezeAfterFull:
    """Callback of Python before and after each collection."""

    def __init__(self) -> None:
        #: Blocks in use after the last complete collection; infinite before the first.
        self._at_last = math.inf
        self._since = 0  #: objects frozen since the memory was looked at
        self._is_complete = False  #: whether the collection under way is complete

    def __call__(self, phase: str, info: Mapping[str, int]) -> None:
        if info["generation"] < 2:
            return
        if phase == "start":
            if self._since > _LOOKED_AT * self._at_last:
                self._since = 0
                self._is_complete = sys.getallocatedblocks() > _GROWN * self._at_last
            if self._is_complete:
                gc.unfreeze()
        elif self._is_complete or (lived := _count_oldest()) > _MANY:
            if self._is_complete or self._at_last == math.inf:
                self._is_complete = False
                self._at_last = sys.getallocatedblocks()
            else:
                self._since += lived
            gc.freeze()
