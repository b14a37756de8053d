"""Steps on the way down, of which each wins more queues than the one before."""

from collections.abc import Iterable


def steps(values: Iterable[float | None]) -> list[float]:
    """Of what each of some queues offers: the nearest step down, the one that wins half, and all of them."""
    ordered = sorted((value for value in values if value is not None), reverse=True)
    return list(dict.fromkeys([*ordered[:1], *ordered[len(ordered) // 2 :][:1], *ordered[-1:]]))
