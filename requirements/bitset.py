"""Sets of small numbers as integers with one bit each: AND, OR and NOT of thousands at once."""

from collections.abc import Collection, Iterator, Sequence

#: Up to this many bits are extracted from a mask one by one.
_FEW = 64
#: Members of a set that are renumbered one by one as fast as one move of all of them.
_MOVES = 3
#: Positions of the bits set in each byte.
_POSITIONS = [[position for position in range(8) if byte >> position & 1] for byte in range(256)]


def list_positions(mask: int) -> Iterator[int]:
    """Yield the positions of the bits that are set, in ascending order."""
    if mask.bit_count() > _FEW:
        yield from _list_many(mask)
        return
    while mask:
        lowest = mask & -mask
        yield lowest.bit_length() - 1
        mask ^= lowest


def _list_many(mask: int) -> Iterator[int]:
    """Extract byte by byte: each step of the other loop copies the whole mask."""
    for start, byte in enumerate(mask.to_bytes((mask.bit_length() + 7) // 8, "little")):
        if byte:
            for position in _POSITIONS[byte]:
                yield 8 * start + position


def mask_from(numbers: Collection[int]) -> int:
    """Return the set of these positions, which may be in any order."""
    if not numbers:
        return 0
    mask = bytearray((max(numbers) >> 3) + 1)
    for number in numbers:
        mask[number >> 3] |= 1 << (number & 7)
    return int.from_bytes(mask, "little")


class Renumbering:
    """Other numbers for the members of sets: quick where many neighbours move equally far."""

    def __init__(self, numbers: Sequence[int]) -> None:
        """`numbers`: the new number of each."""
        self._numbers = numbers
        moves: dict[int, list[int]] = {}
        for old, new in enumerate(numbers):
            moves.setdefault(new - old, []).append(old)
        self._moves = [(by, mask_from(these)) for by, these in moves.items()]

    def apply(self, mask: int) -> int:
        """The same set by the new numbers."""
        if mask.bit_count() <= _MOVES * len(self._moves):
            return mask_from([self._numbers[each] for each in list_positions(mask)])
        moved = 0
        for by, these in self._moves:
            moved |= (mask & these) << by if by >= 0 else (mask & these) >> -by
        return moved
