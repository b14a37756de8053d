"""What the garbage collector leaves out, and when it looks at it all the same."""

import subprocess
import sys

#: Its objects are few but for those that it makes: how many there are in a test process nobody knows.
_CIRCLE = """
import gc, weakref
from cs_config import gc_tuning

class Node:
    pass

def circle():
    one, other = Node(), Node()
    one.other, other.other = other, one
    return one

"""


def _run(program: str) -> str:
    """What a process with a circle at hand prints."""
    command = [sys.executable, "-c", _CIRCLE + program]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()


_PROGRAM = """
gc.disable()  # no collection but those that are asked for
own = gc.get_freeze_count()  # of Python itself
gc_tuning.collect_seldom()
gc_tuning.collect_seldom()  # once more changes nothing
small = [[] for _ in range(10)]
gc.collect()
said = [gc.get_freeze_count() == own]
stays = [[] for _ in range(200_000)]
old = circle()
gone = weakref.ref(old)
gc.collect()
said.append(gc.get_freeze_count() > 200_000)
del old
gc.collect()
said.append(gone() is not None)  # a circle among what is spared
more = [[] for _ in range(150_000)]
gc.collect()
said.append(gc.get_freeze_count() > 350_000)
gc.collect()
said.append(gone() is None)
said.append(gc.get_freeze_count() > 350_000)
counted = gc.get_freeze_count()
del more
said.append(gc.get_freeze_count() < counted - 140_000)  # without a circle it goes at once
print(said)
"""


def test_what_outlived_a_full_collection_is_spared_until_half_as_much_has_come() -> None:
    assert _run(_PROGRAM) == str([True] * 7)


#: Many objects are frozen before all others, as modules are.
_WITH_MODULES = """
gc.disable()
modules = [[] for _ in range(400_000)]
gc.freeze()
gc_tuning.collect_seldom()
stays = [[] for _ in range(60_000)]
old = circle()
gone = weakref.ref(old)
gc.collect()
del old
more = [[] for _ in range(100_000)]
gc.collect()
gc.collect()
said = [gone() is not None]
still_more = [[] for _ in range(150_000)]
gc.collect()
gc.collect()
said.append(gone() is None)
print(said)
"""


def test_what_was_frozen_before_counts_among_what_outlived_a_full_collection() -> None:
    assert _run(_WITH_MODULES) == str([True] * 2)


#: Much comes and goes, as what is known of requests does.
_COMING_AND_GOING = """
gc.disable()
gc_tuning.collect_seldom()
stays = [[] for _ in range(300_000)]
old = circle()
gone = weakref.ref(old)
gc.collect()
gc.collect()
del old
for _ in range(9):
    passing = [[] for _ in range(100_000)]
    gc.collect()
    del passing
print(gone() is not None)
"""


def test_what_goes_without_a_collection_calls_for_no_complete_one() -> None:
    assert _run(_COMING_AND_GOING) == "True"


#: Another thread fills tuples, each of which must have no other reference until it is full.
_BESIDE_OTHERS = """
import sys, threading
gc_tuning.collect_seldom()
sys.setswitchinterval(1e-6)
over, errors = threading.Event(), []

def fill():
    while not over.is_set():
        try:
            tuple([number] for number in range(50))
        except SystemError as error:
            errors.append(error)

other = threading.Thread(target=fill)
other.start()
for _ in range(400):
    gc.collect()
over.set()
other.join()
print(errors)
"""


def test_a_tuple_that_another_thread_fills_is_completed() -> None:
    assert _run(_BESIDE_OTHERS) == "[]"
