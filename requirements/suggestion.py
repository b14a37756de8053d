"""The name that was probably meant."""

from collections.abc import Iterable
from difflib import get_close_matches

#: Characters of a word that is compared; nobody mistypes a longer name.
_LONGEST = 255


def did_you_mean(word: str, known: Iterable[str]) -> str | None:
    """The one of `known` that looks most like `word`, compared without case; None if none is close."""
    if len(word) > _LONGEST:
        return None
    by_fold = {name.casefold(): name for name in known}
    close = get_close_matches(word.casefold(), by_fold, n=1, cutoff=0.7)
    return by_fold[close[0]] if close else None
