"""What batch systems say of jobs, and what follows for one of them."""

from collections.abc import Iterable
from dataclasses import dataclass

from pilotage.fabric.batch.batch_system import ENDED, Handle, Report, State
from pilotage.fabric.batch.work_area import Marks


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """A job in a listing, or in the accounting."""

    stamp: str
    reference: str
    state: State  #: *gone*: it ended, and how is not said
    message: str = ""  #: in the words of the batch system
    exit_code: int | None = None  #: of the script; 128 + number for a signal


def by_stamp(rows: Iterable[Row]) -> dict[str, list[Row]]:
    """The jobs of each stamp, each once however often it is listed; what is said last holds."""
    found: dict[str, dict[str, Row]] = {}
    for row in rows:
        found.setdefault(row.stamp, {})[row.reference] = row
    return {stamp: list(of_stamp.values()) for stamp, of_stamp in found.items()}


def the_one(rows: Iterable[Row], handle: Handle) -> Row | None:
    """Of several jobs of one stamp one that lives: it must not be forgotten; else the one that is meant."""
    return min(rows, key=lambda row: (row.state in ENDED, row.reference != handle.reference), default=None)


def report(row: Row | None, marks: Marks, handle: Handle) -> Report:
    """How a job stands, by what its batch system says (None: nothing) and by what it left itself."""
    if row is not None and row.state not in ENDED:
        return Report(state=row.state, reference=row.reference, message=row.message)
    reference = row.reference if row else handle.reference
    if marks.ended:
        # The script came to its end; whatever the batch system says of it came after.
        killed = row is not None and row.state is State.KILLED
        return Report(
            state=State.KILLED if killed else marks.state,
            reference=reference,
            exit_code=marks.exit_code,
            message=row.message if row else "forgotten by the batch system, known by what it left",
        )
    if row is None:
        return Report(state=State.MISSING, reference=reference)
    state = row.state
    if marks.killed:
        # Also where it is said to be done: a script that ends well leaves its mark before, and some batch
        # systems say 0 of a job whose status they do not know yet.
        state = State.KILLED
    return Report(
        # What it left may be on its way here still: the evidence is not complete.
        state=State.MISSING if state is State.GONE else state,
        reference=reference,
        exit_code=row.exit_code,
        message=row.message,
    )
