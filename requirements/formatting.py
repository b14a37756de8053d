"""Requirements for a person to read, one condition a line."""

from requirements import canonical
from requirements.record.record import Record
from requirements.values import format_value


def lines(original: str) -> tuple[str, ...]:
    """What stored requirements ask: of a record each name with its value, of an expression its text.

    Args:
        original: As first written, JSON; see `canonical`.
    """
    asked = canonical.from_json(original)
    if isinstance(asked, Record):
        return tuple(f"{name} = {format_value(value)}" for name, value in asked.values)
    return (asked.text,)
