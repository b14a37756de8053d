"""From what a command says to records: the named groups that are found in each of them."""

from collections.abc import Collection, Iterator, Mapping

from pilotage.fabric.batch.dialect.dialect import Source
from pilotage.fabric.batch.errors import BatchSystemAway
from requirements import regexps


def read(said: str, source: Source, *, needed: Collection[str] = ()) -> Iterator[Mapping[str, str]]:
    """The groups of each record, as far as they take part in it; a record where nothing is found is left out.

    Raises:
        BatchSystemAway: A record lacks what is needed: the answer breaks off.
    """
    for part in _parts(said, source):
        found = _found(part, source)
        if not found.keys() >= set(needed):
            raise BatchSystemAway(
                f"{source.command[0]}: the answer breaks off, or cannot be read: {part[:80]!r}"
            )
        if found:
            yield found


def _found(part: str, source: Source) -> dict[str, str]:
    found: dict[str, str] = {}
    for pattern in source.patterns:
        if match := regexps.compiled(pattern, "m").search(part):
            found |= {name: text for name, text in match.groupdict().items() if text is not None}
    return found


def _parts(said: str, source: Source) -> Iterator[str]:
    begins = None if source.record is None else regexps.compiled(source.record, "m")
    part: list[str] = []
    for line in said.splitlines():
        is_begin = begins is None or begins.search(line) is not None
        if (is_begin or not part) and _is_nothing(line, source):
            continue
        if is_begin and part:
            yield "\n".join(part)
            part = []
        part.append(line)
    if part:
        yield "\n".join(part)


def _is_nothing(line: str, source: Source) -> bool:
    if not line.strip():
        return True
    return source.ignore is not None and regexps.compiled(source.ignore, "m").search(line) is not None
