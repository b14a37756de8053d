"""Job ids as people type them, and filters where they name none."""

from collections.abc import Iterable, Sequence

from pilotage.cli.errors import WrongUsage

#: More ids than anyone names one by one: a slip of the keyboard.
_MOST = 100_000


def parse_ids(words: Sequence[str] | None) -> list[int]:
    """Ids from words such as `12`, `12-40` or `12,13`, in order, each once.

    Raises:
        WrongUsage: A word that is no id.
    """
    found: dict[int, None] = {}
    for word in words or ():
        for part in word.split(","):
            found.update(dict.fromkeys(_range(part)))
            if len(found) > _MOST:
                raise WrongUsage(f"more than {_MOST} job ids; use filters such as --status")
    return list(found)


def format_ids(ids: Iterable[int]) -> str:
    """Ids as short as they can be typed again: `1-300, 305`."""
    runs: list[list[int]] = []
    for job_id in sorted(ids):
        if runs and runs[-1][1] == job_id - 1:
            runs[-1][1] = job_id
        else:
            runs.append([job_id, job_id])
    return ", ".join(str(first) if first == last else f"{first}-{last}" for first, last in runs)


def _range(part: str) -> range:
    first, dash, last = part.partition("-")
    if not first.isdecimal() or (dash and not last.isdecimal()):
        raise WrongUsage(f"{part!r} is no job id; allowed are numbers and ranges such as 12-40")
    start, end = int(first), int(last or first)
    if end < start or end - start >= _MOST:
        raise WrongUsage(f"{part!r} is no range of job ids")
    return range(start, end + 1)


def read_filters(**given: str | None) -> dict[str, str]:
    """The filters that were given, by the names of the HTTP interface."""
    return {name: value for name, value in given.items() if value is not None}
