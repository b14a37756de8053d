"""How long one evaluation takes by the work that was counted for it before: at the bound at most 10 ms.

In process. Each line is an expression that works as much as is allowed, of one of the functions that build
or read long texts, or whose values take about as much work to read as is allowed; `at the bound` is its time,
scaled to the whole bound.
"""

import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from benchmarks.results import Result
from requirements.classad import evaluation, work
from requirements.classad.parser import read_expression
from requirements.classad.syntax_tree import SourceText
from requirements.classad.work import LargestSizes
from requirements.values import MAX_TEXT, Value

_LONG = "aB" * (MAX_TEXT // 2)
_ITEMS = "1,2,a," * (MAX_TEXT // 6)
_RESOURCE: Mapping[str, Value] = {
    "F": _LONG,
    "I": _ITEMS,
    "Few": ",".join(map(str, range(40))),
    "N": "1," * (MAX_TEXT // 2),
    "Mixed": "".join("ab"[bit] for bit in map(int, bin(3**2500)[2:])),
    "Tags": tuple(f"VO-cms-software-{number:04}" for number in range(1000)),
    "Long": (_LONG,) * 20,
    "Signs": "z" * 90 + "aB",
    "Letters": ("é" * 90,) * 400,
    "Full": tuple(f"VO-cms-software-{number:04}" for number in range(6600)),
    "Numbers": tuple(number + 0.5 for number in range(5700)),
    "Words": ("é" * 20,) * 3000,
    "Music": ("\U0001d160" * 100,) * 60,
    "Marks": ("a" + "\u0301\u0316" * 15,) * 380,
    **{f"x{number}": number for number in range(1000)},
}
#: Expressions that are repeated as often as is allowed.
_PARTS = {
    "texts in a row": "size(strcat(F, F, F, F, F, F, F, F))",
    "lower case in itself": "size(toLower(toUpper(toLower(toUpper(toLower(strcat(F, F, F, F)))))))",
    "texts of lists": "size(string(Tags))",
    "texts of long lists": "size(string(Long))",
    "versions": "versionGE(strcat(F, F), strcat(F, F)) ? 1 : 0",
    "member": 'member("x", Tags) ? 1 : 0',
    "items of a text": "stringListSize(I)",
    "sum of a text": "stringListSum(N)",
    "member of a text": 'stringListMember("x", I) ? 1 : 0',
    "texts with items in common": "stringListsIntersect(N, I) ? 1 : 0",
    "pairs of items": "stringListISubsetMatch(N, Few) ? 1 : 0",
    "separators": "stringListSize(F, Signs)",
    "items in common by separators": "stringListsIntersect(F, F, Signs) ? 1 : 0",
    "letters of lists": "size(string(Letters))",
    "lists as texts": "strcmp(Letters, F) + 1",
    "lists as versions": "versionGE(Tags, F) ? 1 : 0",
    "pattern of few states": 'regexp("^x*y", F) ? 1 : 0',
    "pattern of many states": 'regexp("(.{1,4}){1,4}q", Few) ? 1 : 0',
    "ambiguous pattern": 'regexp("a[ab]{9}c", Mixed) ? 1 : 0',
    "large pattern": 'regexp("(.{1,20}){1,20}q", Few) ? 1 : 0',
    "pattern of too many states": 'regexp("(a|b)*a[ab]{14}c", Mixed) ? 1 : 0',
    "pattern for a list": 'regexpMember("VO-x.*", Tags) ? 1 : 0',
}
#: Expressions whose values take long to read.
_READING = {
    "reading a list": "size(Full)",
    "reading numbers": "size(Numbers)",
    "reading letters": "size(Words)",
    "reading composed signs": "size(Music)",
    "reading marks": "size(Marks)",
    "reading names": f"size({{{', '.join(f'x{number}' for number in range(1000))}}})",
}
#: Regular expressions in one expression.
_MOST_PATTERNS = 20
_MOST = 390
_BOUND = work.MAX_WORK + work.MAX_READING


@dataclass(frozen=True, slots=True, kw_only=True)
class _Measured:
    units: int
    seconds: float


def run(*, quick: bool) -> Iterator[Result]:
    """Each function by itself."""
    for what, part in (_PARTS | _READING).items():
        found = _measured(part, rounds=3 if quick else 15)
        at_bound = 1000 * found.seconds * _BOUND / found.units
        yield Result(
            values={
                "what": what,
                "ms": round(1000 * found.seconds, 2),
                "share of the bound": round(found.units / _BOUND, 2),
                "ms at the bound": round(at_bound, 2),
            },
            targets={"expression at the bound": at_bound},
        )


def _measured(part: str, *, rounds: int) -> _Measured:
    most = 1 if part in _READING.values() else _MOST_PATTERNS if part.startswith("regexp") else _MOST
    units = _evaluating(part)
    text = " + ".join([part if "?" not in part else f"({part})"] * max(1, min(most, work.MAX_WORK // units)))
    program = evaluation.read(SourceText(text=text, path="Requirements"))
    seconds = []
    for _ in range(rounds):
        began = time.thread_time()
        value = program.value(_RESOURCE)
        seconds.append(time.thread_time() - began)
        if type(value) is not int:
            raise TypeError(f"{part} is {value!r}")
    node = read_expression(SourceText(text=text, path="Requirements"))
    return _Measured(units=_sizes().units(work.count_work(node)), seconds=min(seconds))


def _evaluating(text: str) -> int:
    node = read_expression(SourceText(text=text, path="Requirements"))
    sizes = _sizes()
    return work.count_work(node).units(sizes.texts | sizes.lists)


def _sizes() -> LargestSizes:
    sizes = LargestSizes()
    for name, value in _RESOURCE.items():
        sizes.add(name, value)
    return sizes
