"""How much there is to read in a text, known before it is read.

Reading takes microseconds a word, so a text of a megabyte could hold its reader for seconds; counting does
not, and stops where the text has too much.
"""

import re
from itertools import islice

from requirements.source import Source

#: A list of plain texts, such as thousands of file names, is read in one go.
TEXTS = re.compile(r'\{\s*+"[^"\\]*+"(?:\s*+,\s*+"[^"\\]*+")*+\s*+\}')
#: What is not ended goes to the end of the text, so that no part is looked at twice.
_WORD = re.compile(
    r"""(?://[^\n]*+|/\*(?:.*?\*/|.*+)|\s++)
      | (?P<word>\{\s*+"[^"\\]*+"(?:\s*+,\s*+"[^"\\]*+")*+\s*+\}
      | "(?:[^"\\]++|\\.)*+"?
      | [A-Za-z0-9_.]++
      | [=?!<>|&:]++
      | .)""",
    re.VERBOSE | re.DOTALL,
)

#: Words of an ad: a list of texts is one, names, numbers, operators and brackets are one each.
MOST_IN_AD = 12_000
#: Words of an expression.
MOST_IN_EXPRESSION = 6_000


def words(text: str, most: int) -> int:
    """How many words there are; counted no further than the first that is too much."""
    counted = (found for found in _WORD.finditer(text) if found["word"] is not None)
    return sum(1 for _ in islice(counted, most + 1))


def check_volume(source: Source, most: int) -> None:
    """Refuse what would take long to read.

    Raises:
        InvalidInput: There are more words than `most`.
    """
    if len(source.text) <= most:
        return
    words = 0
    for found in _WORD.finditer(source.text):
        words += found["word"] is not None
        if words > most:
            message = f"too long, allowed are {most} names, numbers, operators and brackets"
            raise source.fault(found.start(), message)
