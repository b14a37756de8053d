"""Parsing and printing of job ids, and filters of jobs."""

from collections.abc import Iterable, Sequence

from pilotage.cli.errors import WrongUsage

#: Maximum number of ids; more are probably a typing error.
_MOST = 100_000


def parse_ids(words: Sequence[str] | None) -> list[int]:
    """Distinct ids from words such as `12`, `12-40` or `12,13`, in order.

    Raises:
        WrongUsage: A word is not an id.
    """
    found: dict[int, None] = {}
    for word in words or ():
        for part in word.split(","):
            found.update(dict.fromkeys(_range(part)))
            if len(found) > _MOST:
                raise WrongUsage(f"more than {_MOST} job ids; use filters such as --status")
    return list(found)


def format_ids(ids: Iterable[int]) -> str:
    """Ids in the shortest form that can be typed again: `1-300, 305`."""
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
    """The given filters, by their names in the HTTP interface."""
    return {name: value for name, value in given.items() if value is not None}
