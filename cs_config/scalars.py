"""What an unquoted word of the configuration is: the core rules of YAML 1.2.

PyYAML follows YAML 1.1, in which `NO` (Norway) is false, `12:30` is 750, `010` is 8 and `1e3` is a text.
"""

import math
import re

from requirements.values import MAX_INTEGER, Scalar

_NULLS = frozenset({"", "~", "null", "Null", "NULL"})
_BOOLEANS = {
    "true": True, "True": True, "TRUE": True,
    "false": False, "False": False, "FALSE": False,
}  # fmt: skip
_INTEGER = re.compile(r"[-+]?[0-9]+", re.ASCII)
_NUMBER = re.compile(r"[-+]?(?:\.[0-9]+|[0-9]+(?:\.[0-9]*)?)(?:[eE][-+]?[0-9]+)?", re.ASCII)
#: Read differently by YAML 1.1, YAML 1.2, JSON and people: refused instead.
_AMBIGUOUS = re.compile(r"[-+]?0[0-9_]+|[-+]?0[xob][0-9a-fA-F_]+|[-+]?[1-9][0-9]*_[0-9_]*", re.ASCII)
_NO_NUMBER = re.compile(r"[-+]?\.(?:inf|Inf|INF)|\.(?:nan|NaN|NAN)", re.ASCII)
_START_OF_NUMBER = frozenset("-+.0123456789")


def resolve(word: str) -> Scalar | None:
    """The value of an unquoted word.

    Raises:
        ValueError: It looks like a number that is none, or is not the same one everywhere.
    """
    if word in _BOOLEANS:
        return _BOOLEANS[word]
    if word in _NULLS:
        return None
    return _number(word) if word[0] in _START_OF_NUMBER else word


class _Special:
    """Matches the words that are not plain texts, as a compiled pattern would."""

    def match(self, word: str) -> bool:
        """Whether `resolve` would make something else of the word."""
        try:
            return resolve(word) != word
        except ValueError:
            return True


#: For writers that ask a pattern.
looks_special = _Special()


def _number(word: str) -> Scalar:
    if _AMBIGUOUS.fullmatch(word):
        raise ValueError(
            f"{word} is not the same number to every reader: write it in decimal, or quote it as text"
        )
    if _NO_NUMBER.fullmatch(word):
        raise ValueError(f"{word} is not a number to compare with: leave the name out, or quote it as text")
    if _INTEGER.fullmatch(word):
        if len(word) > 17 or abs(int(word)) > MAX_INTEGER:
            raise ValueError(
                f"{word[:40]} is out of range, integers reach from {-MAX_INTEGER} to {MAX_INTEGER}"
            )
        return int(word)
    if _NUMBER.fullmatch(word):
        number = float(word)
        if not math.isfinite(number):
            raise ValueError(f"{word[:40]} is out of range")
        return number
    return word
