"""Numbered weights to draw from in proportion, in time that grows with the logarithm of how many there are.

Source: P. M. Fenwick, A new data structure for cumulative frequency tables, 1994.
"""


class WeightTree:
    """A weight for each number; none is 0."""

    def __init__(self) -> None:
        self._weights: list[float] = []
        self._sums: list[float] = [0.0]  # [i]: of the weights whose numbers end at i, as many as i's last bit

    @property
    def total(self) -> float:
        """All weights together, rounded."""
        return self._sums[-1]

    def set(self, number: int, weight: float) -> None:
        """Give a number its weight."""
        if number >= len(self._weights):
            self._grow(number + 1)
        difference = weight - self._weights[number]
        self._weights[number] = weight
        place = number + 1
        while place < len(self._sums):
            self._sums[place] += difference
            place += place & -place

    def find(self, point: float) -> int:
        """The number in whose weight a point between 0 and `total` lies, if they are laid end to end."""
        place, step = 0, len(self._weights) >> 1
        while step:
            if self._sums[place + step] <= point:
                place += step
                point -= self._sums[place]
            step >>= 1
        return place

    def _grow(self, least: int) -> None:
        """Make room for a power of two, with sums made anew: so rounding does not add up for ever."""
        size = 1 << (least - 1).bit_length()
        self._weights += [0.0] * (size - len(self._weights))
        self._sums = [0.0, *self._weights]
        for place in range(1, size + 1):
            above = place + (place & -place)
            if above <= size:
                self._sums[above] += self._sums[place]
