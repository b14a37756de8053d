"""Requirements formatted for people, one condition per line."""

from requirements import canonical
from requirements.record.record import Record
from requirements.values import format_value


def lines(original: str) -> tuple[str, ...]:
    """Format stored requirements (JSON, see `canonical`): names and values of a record, or the expression."""
    asked = canonical.from_json(original)
    if isinstance(asked, Record):
        return tuple(f"{name} = {format_value(value)}" for name, value in asked.values)
    return (asked.text,)
