"""Evaluate an expression for a resource, and find its parts that are not true.

Only `true` itself counts: undefined and Error are truthy integers in Python, but not true here.

A user's expression is compiled so that HTCondor's library can evaluate it safely and repeatedly. The library
does not get the user's text but the parsed tree, rendered again: the resource is the only scope, comments and
text after the expression are gone, and regular expressions are computed beforehand. Numbers reach the version
functions as their shortest text, 9.4, where the library would write 9.400000000000000E+00.

The library cannot be interrupted: where an evaluation might take longer than milliseconds, by the sizes of
the values, the value is Error instead, and what takes longer than one takes turns.
"""

import itertools
import math
from collections import defaultdict
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Final

import classad2
import htcondor2  # noqa: F401  # registers functions of HTCondor, such as stringListMember, with classad2

from requirements.classad import restrictions, turns, work
from requirements.classad.parser import SHORT, read_expression
from requirements.classad.restrictions import MAX_SIZE, check, parts_of, resource_name, resource_names
from requirements.classad.syntax_tree import (
    AND,
    Attribute,
    Call,
    Chain,
    Literal,
    Node,
    SourceText,
    attribute_key,
    attribute_name,
    children,
    render,
)
from requirements.classad.work import LargestSizes, Size, Work, WorkLimit
from requirements.errors import InvalidInput
from requirements.kept import keep
from requirements.record import Reason, ReasonKind
from requirements.values import Value, as_value, find_excess, fold, format_value, lookup, lookup_each, to_nfc


@dataclass(frozen=True, slots=True, kw_only=True)
class _Computed:
    """A part that is computed in Python, and replaced by an attribute that holds its result."""

    name: str
    argument: Any  # ExprTree
    compute: Callable[[object], object]

    def result(self, ad: Any) -> object:
        value = self.argument.eval(ad)
        if isinstance(value, list):
            value = [item.eval(ad) if isinstance(item, classad2.ExprTree) else item for item in value]
        return self.compute(value)


@dataclass(frozen=True, slots=True, kw_only=True)
class Program:
    """A compiled expression or part of one."""

    text: str  #: as written
    names: tuple[str, ...]  #: parameters of the resource it refers to, in their first spelling
    parts: tuple["Program", ...]  #: operands of the outermost `&&`; empty if there is none
    tree: Any  #: the library's ExprTree
    computed: tuple[_Computed, ...]  #: in order of dependency
    limits: tuple[WorkLimit, ...]  #: of its work; beyond one of them its value is Error
    long: tuple[Work, ...]  #: of its operands, if some values make its evaluation a long one
    patterns: int  #: bytes of its regular expressions, at most
    shares: Mapping[str, int]  #: work of reading each name, by `attribute_key`; a value beyond it is Error

    def value(self, resource: Mapping[str, Value]) -> object:
        """Evaluate for a resource: a Python value, or `classad2.Value`."""
        return self._evaluate(_read_values(self.names, resource, self.shares))

    @staticmethod
    def values_of(
        programs: Iterable["Program"], names: Iterable[str], resource: Mapping[str, Value]
    ) -> Iterator[object]:
        """Evaluate operands of one expression for a resource of which only `names` matter.

        Its ad is built once.
        """
        operands = tuple(programs)
        values = _read_values(names, resource, operands[0].shares if operands else {})
        return (each._evaluate(values) for each in operands)  # noqa: SLF001  # its own class

    def values(
        self, resource: Mapping[str, Value], options: Mapping[str, Sequence[object]]
    ) -> Iterator[object]:
        """Evaluate for each combination of the options (None: absent); those of the last name change first.

        The resource has fixed parameters only, without the names in `options`. An option may be the library's
        Error.
        """
        values = _read_values(self.names, resource, self.shares)
        readings = [[values.read(name, has) for has in allowed] for name, allowed in options.items()]
        before: tuple[_Reading | None, ...] = (None,) * len(readings)
        for combination in itertools.product(*readings):
            for last, reading in zip(before, combination, strict=True):
                if reading is not last:
                    values.set(reading)
            before = combination
            yield self._evaluate(values)

    def find_excess(self, resource: Mapping[str, Value]) -> str | None:
        """Return why the expression is not evaluated for a resource; None: it is."""
        sizes = _read_values(self.names, resource, self.shares).sizes if self.limits else {}
        return next((each.describe(sizes) for each in self.limits if each.is_exceeded(sizes)), None)

    def _evaluate(self, values: "_ReadValues") -> object:
        if any(each.is_exceeded(values.sizes) for each in self.limits):
            return classad2.Value.Error
        with turns.take(sum(each.units(values.sizes) for each in self.long)):
            return self._compute(values.ad)

    def _compute(self, ad: Any) -> object:
        try:
            for part in self.computed:
                ad[part.name] = part.result(ad)
            return self.tree.eval(ad)
        except (classad2.ClassAdException, UnicodeDecodeError):
            # The latter: `substr` counts bytes and may split a character.
            return classad2.Value.Error
        finally:
            # In another program this may be the name of a parameter.
            for part in self.computed:
                ad.pop(part.name, None)


def work_of_text(text: str, sizes: LargestSizes) -> int:
    """Return an upper bound of the work of one evaluation, without reading; 0 if it cannot be parsed."""
    try:
        node = read_expression(SourceText(text=text, path="Requirements"))
    except InvalidInput:
        return 0
    return sizes.evaluation_units(work.count_work(node))


@dataclass(frozen=True, slots=True, kw_only=True)
class _Reading:
    """One value, as the library reads it; None: absent."""

    key: str
    value: object
    size: Size | None = None


@dataclass(frozen=True, slots=True)
class _ReadValues:
    """Values of a resource, as the library reads them."""

    shares: Mapping[str, int]  #: work of reading each name that is allowed, by `attribute_key`
    ad: Any = field(default_factory=classad2.ClassAd)
    sizes: dict[str, Size] = field(default_factory=dict)

    def read(self, name: str, has: Any) -> _Reading:
        """Convert a value; None: absent. One that is too long is Error."""
        key = attribute_key(name)
        if has is None or has is classad2.Value.Error:
            return _Reading(key=key, value=has)
        size, excess = _measure(has, self.shares.get(key))
        if excess:
            return _Reading(key=key, value=classad2.Value.Error)
        # `as_value` again: the library crashes the process on text that is not valid Unicode.
        return _Reading(key=key, value=_library_text(as_value(has, name)), size=size)

    def set(self, reading: _Reading) -> None:
        """Set a value, or remove it."""
        if reading.size is None:
            self.sizes.pop(reading.key, None)
        else:
            self.sizes[reading.key] = reading.size
        if reading.value is None:
            self.ad.pop(reading.key, None)
            return
        with turns.take(0 if reading.size is None else reading.size.reading):
            self.ad[reading.key] = reading.value


def _measure(value: Value, share: int | None) -> tuple[Size | None, str | None]:
    """Return the size of a value, and why it is not read; None: it is.

    Without a share any work of reading is allowed. Of a list with too many items none is looked at.
    """
    size = work.measure_least(value)
    if excess := _find_excess(size, share) or find_excess(value):
        return size, excess
    size = work.measure(value)
    return size, _find_excess(size, share)


def _find_excess(size: Size | None, share: int | None) -> str | None:
    return None if size is None or share is None else size.find_excess(share)


def _read_values(
    names: Iterable[str], resource: Mapping[str, Value], shares: Mapping[str, int]
) -> _ReadValues:
    found = _ReadValues(shares=shares)
    for name, has in lookup_each(resource, names):
        found.set(found.read(name, has))
    return found


def _library_text(value: Value) -> object:
    if isinstance(value, tuple):
        return [to_nfc(item) if isinstance(item, str) and not item.isascii() else item for item in value]
    return to_nfc(value) if isinstance(value, str) else value


def read(source: SourceText) -> Program:
    """Parse, check and compile an expression; `InvalidInput` also for one that users may not evaluate.

    Programs of short texts are cached; of an invalid one the position in its file is found each time.
    """
    if len(source.text) <= SHORT and isinstance(known := _compile_short(source.text), Program):
        return known
    return _compile(source)


def _try_compile(text: str) -> Program | str:
    """Return the program of a text, or the message if it is invalid."""
    return (_compile_short if len(text) <= SHORT else _compile_long)(text)


def _compile_text(text: str) -> Program | str:
    try:
        return _compile(SourceText(text=text, path="Requirements"))
    except InvalidInput as error:
        return str(error)


#: Bytes of a program for each character, at most.
_OF_CHARACTER: Final = 100


def _measure_program(program: Program | str, text: str) -> int:
    return _OF_CHARACTER * len(text) + (0 if isinstance(program, str) else program.patterns)


#: The agent goes through the expressions of all pools in turn: a cache of fewer would never have the next.
_compile_short = keep(128, _measure_program)(_compile_text)
_compile_long = keep(64, _measure_program)(_compile_text)
KEPT_MB: Final = (_compile_short.most + _compile_long.most) >> 20


def _compile(source: SourceText) -> Program:
    if len(source.text) > MAX_SIZE:
        raise source.fault(0, f"{len(source.text)} characters, allowed are {MAX_SIZE}")
    node = read_expression(source)
    check(node, source)
    try:
        return _compile_operands(node, source.text)
    except classad2.ClassAdException as error:
        raise source.fault(node.start, "HTCondor's ClassAd library cannot read this") from error


def _compile_operands(node: Node, text: str) -> Program:
    operands = tuple(conjuncts(node))
    counted = [work.count_work(each) for each in operands]
    limits = work.limits(counted)
    parts: tuple[Program, ...] = ()
    whole = _build_program(node, text, counted, limits)
    if len(operands) > 1:
        each = zip(operands, counted, limits, strict=True)
        parts = tuple(_operand(part, whole, units, limit) for part, units, limit in each)
    return replace(whole, parts=parts)


def _operand(node: Node, whole: Program, counted: Work, limit: WorkLimit | None) -> Program:
    """Compile one operand of `&&`, where a number counts as true or false."""
    as_operand = Chain(level=AND, first=Literal(value=True), rest=(("&&", node),))
    operand = _build_program(as_operand, whole.text[node.start : node.end], (counted,), (limit,))
    return replace(operand, shares={name: whole.shares[name] for name in operand.shares})


def conjuncts(node: Node) -> Iterator[Node]:
    """Yield the operands of the outermost `&&`, or the expression itself."""
    if isinstance(node, Chain) and node.level == AND:
        for operand in children(node):
            yield from conjuncts(operand)
    else:
        yield node


def compile_node(node: Node) -> Program:
    """Compile a part of an expression that is already parsed and checked."""
    counted = [work.count_work(each) for each in conjuncts(node)]
    return _build_program(node, "", counted, work.limits(counted))


def _build_program(
    node: Node, text: str, counted: Sequence[Work], limits: Sequence[WorkLimit | None]
) -> Program:
    names = resource_names(node)
    computed = _Computation(prefix=_free_prefix(names))
    return Program(
        text=text,
        names=tuple(names.values()),
        parts=(),
        tree=classad2.ExprTree(render(node, computed.replace)),
        computed=tuple(computed.found),
        limits=tuple(limit for limit in limits if limit is not None),
        long=tuple(counted) if sum(each.most for each in counted) > turns.LONG else (),
        patterns=sum(work.pattern_bytes(each) for each in parts_of(node)),
        shares=work.reading_shares(node),
    )


@dataclass(slots=True, kw_only=True)
class _Computation:
    """Collects the parts of an expression that are computed in Python."""

    prefix: str
    found: list[_Computed] = field(default_factory=list)

    def replace(self, part: Node) -> str | None:
        """Return the text that replaces a part; None: its own."""
        if isinstance(part, Attribute):
            return attribute_name(resource_name(part) or "")
        if not isinstance(part, Call):
            return None
        if restrictions.is_regexp(part):
            matches = restrictions.matches if part.name.lower() == "regexp" else restrictions.matches_member
            return self._add(part.arguments[1], partial(matches, restrictions.pattern_of(part)))
        if restrictions.is_version(part):
            arguments = ", ".join(map(self._as_version, part.arguments))
            return f"{part.name.lower()}({arguments})"
        return None

    def _as_version(self, argument: Node) -> str:
        """Return an argument of a version function, with a number as its shortest text."""
        if isinstance(argument, Literal):
            return render(replace(argument, value=restrictions.version_of(argument.value)))
        return self._add(argument, restrictions.version_of)

    def _add(self, argument: Node, compute: Callable[[Any], object]) -> str:
        tree = classad2.ExprTree(render(argument, self.replace))
        self.found.append(_Computed(name=f"{self.prefix}{len(self.found)}", argument=tree, compute=compute))
        return self.found[-1].name


def _free_prefix(names: Mapping[str, str]) -> str:
    """Return a prefix for names of results that no attribute of the expression has."""
    prefix = "computed_"
    while any(name.startswith(prefix) for name in names):
        prefix += "_"
    return prefix


#: Text for an attribute that the resource does not have.
ABSENT = "is absent"


def format_values(
    program: Program, resource: Mapping[str, Value], spelled: Mapping[str, str] | None = None
) -> str | None:
    """Format the values that an expression reads, and the reason if it is not evaluated; None: neither.

    `spelled` has names of the expression as they are shown, if they are others.
    """
    formatted = [
        format_attribute(
            spelled[name] if spelled else name, lookup(resource, name), program.shares[attribute_key(name)]
        )
        for name in program.names
    ]
    excess = program.find_excess(resource)
    return "; ".join((excess, *formatted) if excess else formatted) or None


def format_attribute(name: str, value: Value | None, share: int | None = None) -> str:
    """Format one value that an expression reads, or why it does not: beyond its share of the reading."""
    if value is None:
        return f"{name} {ABSENT}"
    excess = find_excess(value) or _measure(value, share)[1]
    return f"{name} {excess}" if excess else f"{name} = {format_value(value)}"


def is_true(text: str, resource: Mapping[str, Value]) -> bool:
    """Whether the expression is `true` for the resource: not undefined, Error or a number."""
    known = _try_compile(text)
    return isinstance(known, Program) and known.value(resource) is True


@dataclass(frozen=True, slots=True, kw_only=True)
class Operands:
    """Operands of the outermost `&&` that depend on the same attributes, or else the whole expression."""

    names: tuple[str, ...]  #: the attributes they depend on
    programs: Mapping[str, Program]  #: by text as written
    is_whole: bool  #: there is no `&&`: a number is then not true, unlike in an operand

    def failing(self, resource: Mapping[str, Value]) -> Iterator[tuple[str, object]]:
        """Yield text and value of each operand that is not true of the resource."""
        values = Program.values_of(self.programs.values(), self.names, resource)
        return (each for each in zip(self.programs, values, strict=True) if each[1] is not True)

    @property
    def key(self) -> Hashable:
        """Cache key, equal for operands that are true of the same resources."""
        allowed = (
            (*(limit.allowed for limit in each.limits), *each.shares.values())
            for each in self.programs.values()
        )
        return self.is_whole, tuple(zip(self.programs, allowed, strict=True))

    def has(self, text: str, resource: Mapping[str, Value]) -> str | None:
        """Format the resource's values of the attributes of an operand; None: it has no attributes."""
        program = self.programs[text]
        return format_values(program, resource)


def failing_parts(text: str, resource: Mapping[str, Value]) -> tuple[Reason, ...]:
    """Return the operands of the outermost `&&` that are not true; empty if and only if the whole is true.

    A stored expression that can no longer be parsed is reported as an error, so that others continue.
    """
    known = _try_compile(text)
    if isinstance(known, str):
        return (make_reason(text, known, ReasonKind.ERROR),)
    if known.value(resource) is True:
        return ()
    # A smaller mapping: each group looks up its names again.
    resource = {name: value for name in known.names if (value := lookup(resource, name)) is not None}
    found = {
        part: make_reason(part, group.has(part, resource), _kind(value))
        for group in group_operands(text, frozenset(map(fold, resource)))
        for part, value in group.failing(resource)
    }
    return tuple(found[part] for part in dict.fromkeys(operands(text) or (text,)) if part in found)


@keep(16, lambda _, text, present: _OF_CHARACTER * len(text) + 100 * len(present))
def group_operands(text: str, present: frozenset[str]) -> tuple[Operands, ...]:
    """Group the operands of the outermost `&&` by the attributes they depend on.

    `present` has the folded names that any resource has. Empty if the text can no longer be parsed.
    """
    known = _try_compile(text)
    if isinstance(known, str):
        return ()
    groups: defaultdict[frozenset[str], dict[str, Program]] = defaultdict(dict)
    for each in known.parts or (known,):
        groups[frozenset(attribute_key(name) for name in each.names if fold(name) in present)][each.text] = (
            each
        )
    return tuple(
        Operands(names=tuple(names), programs=programs, is_whole=not known.parts)
        for names, programs in groups.items()
    )


def number(text: str, resource: Mapping[str, Value]) -> float | None:
    """Evaluate an expression to a number; None: undefined, an error, or another type."""
    known = _try_compile(text)
    return None if isinstance(known, str) else as_rank(known.value(resource))


def as_rank(value: object) -> float | None:
    """Return a computed value if it is a finite number; booleans are not numbers."""
    is_number = type(value) in (int, float) and math.isfinite(value)  # type: ignore[arg-type]
    return value if is_number else None  # type: ignore[return-value]


def names(text: str) -> tuple[str, ...]:
    """Return the attributes of a resource in an expression; empty if it can no longer be parsed."""
    known = _try_compile(text)
    return () if isinstance(known, str) else known.names


def operands(text: str) -> tuple[str, ...]:
    """Return the operands of the outermost `&&`; empty if there is none, or if the text cannot be parsed."""
    known = _try_compile(text)
    return () if isinstance(known, str) else tuple(part.text for part in known.parts)


def names_of_lists(text: str) -> frozenset[str]:
    """Folded names of parameters that an expression reads as lists; none if it cannot be parsed."""
    try:
        return restrictions.names_of_lists(read_expression(SourceText(text=text, path="")))
    except InvalidInput:
        return frozenset()


def make_reason(text: str, has: str | None, kind: ReasonKind) -> Reason:
    """Return the reason that a part of an expression, as written, gives with the resource's values."""
    return Reason(requirement="Requirements", wanted=text, has=has, kind=kind)


def _kind(value: object) -> ReasonKind:
    if value is classad2.Value.Error:
        return ReasonKind.ERROR
    return ReasonKind.UNDEFINED if value is classad2.Value.Undefined else ReasonKind.EXPRESSION
