"""What share of the answers came within which time."""

from collections.abc import Sequence


def quantile(values: Sequence[float], share: float) -> float:
    """The value that this share of the values does not go beyond; 0 of none."""
    return sorted(values)[min(len(values) - 1, int(share * len(values)))] if values else 0.0
