"""Upper bound of the work of an evaluation, by the tree of the expression and the sizes of the values.

HTCondor's library cannot be interrupted, and the interpreter waits for it. A short expression may build long
texts of short values, `toLower(strcat(X, X, …))`, and a short pattern may read a text many times. So the work
is bounded before the evaluation; beyond the bound the value is Error.

A function that builds a text hands its argument's length on, one that returns a number or a truth value does
not. So the work is linear in the sizes of the values that the expression reads, with one weight for each
name, and the weights are found once. Only a few functions compare two texts part by part: the product of the
two lengths is added for these. Weights were measured; `benchmarks/expressions.py` compares them with times.
"""

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from requirements.classad import restrictions
from requirements.classad.syntax_tree import (
    ELVIS,
    Attribute,
    Call,
    Chain,
    Conditional,
    ListOf,
    Literal,
    Node,
    Subscript,
    attribute_key,
    children,
    render,
)
from requirements.values import MAX_ITEMS, MAX_LIST, MAX_TEXT, Value, find_excess, to_nfc

#: Work of one evaluation; a unit takes at most 0.1 ns, all of it at most 10 ms.
MAX_WORK: Final = 100_000_000

TOO_LONG: Final = "the texts that it reads and builds are too long"

#: Bytes of a character in UTF-8 and NFC, at most.
_BYTES: Final = 12
#: Bytes of a number as text, at most: `-1.797693134862316E+308`.
_NUMBER: Final = 24
#: Bytes of one byte of an item in a list that is converted to text: `\303`.
_ESCAPED: Final = 4
#: Bytes that count for an item of a list besides its text: the library handles it as a value of its own.
_ITEM: Final = 16
#: Work of each operator, name and literal, and of an argument that is computed in Python.
_NODE: Final = 1_000
_COMPUTED: Final = 50_000
#: Work for each byte that a regular expression is matched with: if RE2 can keep all states of its automaton,
#: and for each instruction of its program else.
_MATCHING: Final = 150
_INSTRUCTION: Final = 250
#: Instructions of a program that has few states in any case, and of one without the signs below. Measured.
_FEW_INSTRUCTIONS: Final = 18
_SOME_INSTRUCTIONS: Final = 100
_FLAGS: Final = re.compile(r"\(\?[a-z]+\)")
#: What stands for several characters, and what repeats; two of each make few states, ten may make thousands.
_SEVERAL: Final = re.compile(r"[.\[(]|\\[A-Za-z]")
_REPEATING: Final = re.compile(r"[*+?]")
_AMBIGUITIES: Final = 2

#: Work for each byte, of functions that return a text, of those that read one, and of those that read a list.
_BUILDING: Final = {"strcat": 20, "string": 20, "substr": 10, "tolower": 150, "toupper": 150}
_READING: Final = {
    **dict.fromkeys(("int", "real", "bool", "floor", "ceiling", "round", "pow", "quantize"), 10),
    **dict.fromkeys(("strcmp", "stricmp"), 5),
    **dict.fromkeys(("versioncmp", "versiongt", "versionge", "versionlt", "versionle", "versioneq"), 30),
    "version_in_range": 50,
    "stringlistsize": 250,
    **dict.fromkeys(("stringlistsum", "stringlistavg", "stringlistmin", "stringlistmax"), 1_200),
    **dict.fromkeys(("stringlistmember", "stringlistimember"), 300),
    **dict.fromkeys(("stringlistsintersect", "stringlistsubsetmatch", "stringlistisubsetmatch"), 2_000),
}
_LISTS: Final = dict.fromkeys(
    ("member", "identicalmember", "anycompare", "allcompare", "sum", "avg", "min", "max"), 20
)
#: Functions that compare each item of the first text with each of the second.
_PAIRS: Final = frozenset({"stringlistisubsetmatch"})
_PER_PAIR: Final = 10
#: Of functions whose last argument may have the separators, the place of that argument.
_SEPARATORS: Final = {
    **dict.fromkeys(
        ("stringlistsize", "stringlistsum", "stringlistavg", "stringlistmin", "stringlistmax"), 1
    ),
    **dict.fromkeys(("stringlistmember", "stringlistimember"), 2),
    **dict.fromkeys(("stringlistsintersect", "stringlistsubsetmatch", "stringlistisubsetmatch"), 2),
}
_PER_SEPARATOR: Final = 15


@dataclass(frozen=True, slots=True, kw_only=True)
class Size:
    """Size of a text, or of a list with all its items."""

    bytes: int
    items: int | None = None  #: of a list; None: it is a text


#: Sizes of the values that are texts or lists, by `attribute_key`.
Sizes = Mapping[str, Size]


def measure(value: object) -> Size | None:
    """Return the size of a value as the library has it; None: it is neither text nor a list."""
    if isinstance(value, str):
        return Size(bytes=_text_bytes(value))
    if isinstance(value, list | tuple):
        texts = sum(_text_bytes(item) if isinstance(item, str) else _NUMBER for item in value)
        return Size(bytes=texts + _ITEM * len(value), items=len(value))
    return None


def _text_bytes(text: str) -> int:
    return len(text) if text.isascii() else len(to_nfc(text).encode())


#: The largest sizes that values may have.
_LARGEST_TEXT: Final = Size(bytes=MAX_TEXT * _BYTES)
_LARGEST_LIST: Final = Size(bytes=MAX_LIST * _BYTES, items=MAX_ITEMS)


@dataclass(slots=True, kw_only=True)
class _Sum:
    """A linear function of the sizes: a constant, and a weight for each byte of a value."""

    constant: int = 0
    of_texts: dict[str, int] = field(default_factory=dict)  #: by `attribute_key`, if the value is a text
    of_lists: dict[str, int] = field(default_factory=dict)  #: if it is a list
    of_items: dict[str, int] = field(default_factory=dict)  #: for each item of a list

    def value(self, sizes: Sizes) -> int:
        """Return the value for values of these sizes."""
        total = self.constant
        for name, weight in self.of_texts.items():
            if size := sizes.get(name):
                total += size.bytes * weight if size.items is None else self._of_list(name, size)
        return total

    def _of_list(self, name: str, size: Size) -> int:
        return size.bytes * self.of_lists[name] + (size.items or 0) * self.of_items.get(name, 0)

    @property
    def most(self) -> int:
        """The value for the largest values that there may be."""
        largest = (
            max(weight * _LARGEST_TEXT.bytes, self._of_list(name, _LARGEST_LIST))
            for name, weight in self.of_texts.items()
        )
        return self.constant + sum(largest)


@dataclass(frozen=True, slots=True, kw_only=True)
class Work:
    """Upper bound of the work of one expression, for any values."""

    linear: _Sum
    products: tuple[tuple[_Sum, _Sum], ...]

    def units(self, sizes: Sizes) -> int:
        """Return the bound for values of these sizes."""
        return self.linear.value(sizes) + sum(
            one.value(sizes) * two.value(sizes) for one, two in self.products
        )

    @property
    def most(self) -> int:
        """The bound for the largest values that there may be."""
        return self.linear.most + sum(one.most * two.most for one, two in self.products)


@dataclass(frozen=True, slots=True)
class LargestSizes:
    """The sizes of the largest values that each name has at any of many resources."""

    texts: dict[str, Size] = field(default_factory=dict)
    lists: dict[str, Size] = field(default_factory=dict)

    def add(self, name: str, value: Value | None) -> None:
        """Add a value; one that is too long is not read."""
        size = None if value is None or find_excess(value) else measure(value)
        if size is not None:
            kept, key = self.texts if size.items is None else self.lists, attribute_key(name)
            known = kept.setdefault(key, size)
            items = None if size.items is None else max(size.items, known.items or 0)
            kept[key] = Size(bytes=max(size.bytes, known.bytes), items=items)

    def units(self, work: Work) -> int:
        """Return an upper bound of the work of one evaluation at any of the resources."""
        return min(work.units(self.texts) + (work.units(self.lists) if self.lists else 0), MAX_WORK)


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkLimit:
    """The work of an operand of the outermost `&&`, and how much of it is allowed."""

    work: Work
    allowed: int

    def is_exceeded(self, sizes: Sizes) -> bool:
        """Whether the operand is not evaluated for values of these sizes."""
        return self.work.units(sizes) > self.allowed

    def describe(self, sizes: Sizes) -> str:
        """Return the reason why the operand is not evaluated for values of these sizes."""
        percent = math.ceil(100 * self.work.units(sizes) / self.allowed)
        return f"{TOO_LONG}: {percent} % of the work that is allowed"


def limits(operands: tuple[Node, ...]) -> tuple[WorkLimit | None, ...]:
    """Return the limit of each operand of the outermost `&&`; None: it is below for any values.

    Operands are also evaluated one by one, so each has a share that does not depend on the values of others.
    Shares are rounded so that an operand mostly has the same in different expressions.
    """
    counted = [count_work(each) for each in operands]
    if len(operands) == 1:
        return (None if counted[0].most <= MAX_WORK else WorkLimit(work=counted[0], allowed=MAX_WORK),)
    light = MAX_WORK // (2 * len(operands))
    heavy = sum(each.most > light for each in counted)
    share = MAX_WORK // 2 >> max(0, heavy - 1).bit_length()
    return tuple(None if each.most <= light else WorkLimit(work=each, allowed=share) for each in counted)


def count_work(node: Node) -> Work:
    """Return the bound for an expression that is checked already."""
    counter = _Counter()
    counter.add(node, 0, 0)
    return Work(linear=counter.found, products=tuple(counter.products))


def _matching_work(call: Call) -> int:
    """Return the work of matching one byte with the pattern of a call."""
    compiled = restrictions.pattern_of(call)
    size: int = compiled.programsize
    pattern = _FLAGS.sub("", compiled.pattern, count=1)
    several, repeating = len(_SEVERAL.findall(pattern)), len(_REPEATING.findall(pattern))
    is_simple = "{" not in pattern and several <= _AMBIGUITIES and repeating <= _AMBIGUITIES
    if size <= _FEW_INSTRUCTIONS or (is_simple and size <= _SOME_INSTRUCTIONS):
        return _MATCHING
    return _INSTRUCTION * size


@dataclass(slots=True, kw_only=True)
class _Counter:
    """Adds up the work of a tree, from the top: each part with the work that a byte of its value causes."""

    only_length: bool = False  #: count the bytes of the value instead of the work
    found: _Sum = field(default_factory=_Sum)
    products: list[tuple[_Sum, _Sum]] = field(default_factory=list)

    def add(self, node: Node, text: int, items: int) -> None:
        """Add a part: `text` for each byte of its value if this is a text, `items` if it is a list."""
        if not self.only_length:
            self.found.constant += _NODE
        match node:
            case Literal(value=value):
                known = measure(value)
                self.found.constant += text * (known.bytes if known else _NUMBER)
            case Attribute(names=names):
                self._add_name(attribute_key(names[-1]), text, items)
            case ListOf(items=parts):
                # Converted to text, its items are written as expressions.
                self.found.constant += items * (_ITEM * len(parts) + len(render(node)))
                self._add_all(parts, items, items)
            case Conditional(condition=condition, then=then, otherwise=otherwise):
                self._add_all((condition,), self._own(1), 0)
                self._add_all((then, otherwise), text + self._own(1), items)
            case Chain(level=level) if level == ELVIS:
                self._add_all(children(node), text + self._own(1), items)
            case Subscript(of=of, index=index):
                self.add(of, self._own(1), max(text, items) + self._own(1))
                self.add(index, self._own(1), 0)
            case Call():
                self._add_call(node, text, items)
            case _:
                self.found.constant += text * _NUMBER
                self._add_read(children(node), 1, 0)

    def _add_name(self, name: str, text: int, items: int) -> None:
        self.found.constant += text * _NUMBER
        self.found.of_texts[name] = self.found.of_texts.get(name, 0) + text
        self.found.of_lists[name] = self.found.of_lists.get(name, 0) + items

    def _add_call(self, call: Call, text: int, items: int) -> None:
        name, arguments = call.name.lower(), call.arguments
        if name == "ifthenelse":
            self._add_all(arguments[:1], self._own(1), 0)
            self._add_all(arguments[1:], text + self._own(1), items)
        elif (weight := _BUILDING.get(name)) is not None:
            weight = text + self._own(weight)
            self._add_all(arguments, weight, weight * _ESCAPED)
        else:
            self.found.constant += text * _NUMBER
            self._add_reading(name, call)

    def _add_reading(self, name: str, call: Call) -> None:
        arguments = call.arguments
        if restrictions.is_regexp(call):
            self.found.constant += self._own(_COMPUTED)
            weight = _matching_work(call)
            self._add_read(arguments[1:2], weight, weight)
            self._add_items(arguments[1])
        elif (weight := _READING.get(name, 0)) > 0:
            self.found.constant += self._own(_COMPUTED if name.startswith("version") else 0)
            self._add_read(arguments, weight, weight * _ESCAPED)
            if not self.only_length:
                self._add_products(name, arguments)
        else:
            weight = _LISTS.get(name, 1)
            self._add_read(arguments, weight, _LISTS.get(name, 0))

    def _add_items(self, node: Node) -> None:
        """Add the items of lists, each of which is matched in Python."""
        if self.only_length:
            return
        if isinstance(node, Attribute):
            name = attribute_key(node.names[-1])
            self.found.of_items[name] = self.found.of_items.get(name, 0) + _COMPUTED
        elif isinstance(node, ListOf):
            self.found.constant += _COMPUTED * len(node.items)
        for part in children(node):
            self._add_items(part)

    def _add_products(self, name: str, arguments: tuple[Node, ...]) -> None:
        place = _SEPARATORS.get(name, len(arguments))
        if name in _PAIRS:
            self.products.append((self._length(arguments[:1], _PER_PAIR), self._length(arguments[1:2], 1)))
        if place < len(arguments):
            separators = self._length(arguments[place:], _PER_SEPARATOR)
            self.products.append((self._length(arguments[:place], 1), separators))

    def _length(self, parts: tuple[Node, ...], factor: int) -> _Sum:
        """Return the bytes of the parts as texts, multiplied."""
        inner = _Counter(only_length=True)
        inner._add_all(parts, factor, factor * _ESCAPED)
        return inner.found

    def _add_read(self, parts: tuple[Node, ...], text: int, items: int) -> None:
        """Add parts whose length is not handed on."""
        if not self.only_length:
            self._add_all(parts, text, items)

    def _add_all(self, parts: tuple[Node, ...], text: int, items: int) -> None:
        for part in parts:
            self.add(part, text, items)

    def _own(self, weight: int) -> int:
        return 0 if self.only_length else weight
