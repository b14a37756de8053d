"""Evaluate an expression for a resource, and find its parts that are not true.

Only `true` itself counts: undefined and Error are truthy integers in Python, but not true here.

A user's expression is compiled so that HTCondor's library can evaluate it safely and repeatedly. The library
does not get the user's text but the parsed tree, rendered again: the resource is the only scope, comments and
text after the expression are gone, and regular expressions are computed beforehand.
"""

import itertools
import math
import unicodedata
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

import classad2
import htcondor2  # noqa: F401  # registers functions of HTCondor, such as stringListMember, with classad2

from requirements.classad import restrictions
from requirements.classad.parser import SHORT, read_expression
from requirements.classad.restrictions import MAX_SIZE, check, resource_name, resource_names
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
from requirements.errors import InvalidInput
from requirements.record import Reason, ReasonKind
from requirements.values import Value, as_value, fold, format_value, lookup


@dataclass(frozen=True, slots=True, kw_only=True)
class _Regexp:
    """A regular expression call, replaced by an attribute that holds its result."""

    name: str
    pattern: Any
    subject: Any  # ExprTree
    of_list: bool

    def result(self, ad: Any) -> object:
        subject = self.subject.eval(ad)
        if not self.of_list:
            return restrictions.matches(self.pattern, subject)
        if isinstance(subject, list):
            subject = [item.eval(ad) if isinstance(item, classad2.ExprTree) else item for item in subject]
        return restrictions.matches_member(self.pattern, subject)


@dataclass(frozen=True, slots=True, kw_only=True)
class Program:
    """A compiled expression or part of one."""

    text: str  #: as written
    names: tuple[str, ...]  #: parameters of the resource it refers to, in their first spelling
    parts: tuple["Program", ...]  #: operands of the outermost `&&`; empty if there is none
    tree: Any  #: the library's ExprTree
    regexps: tuple[_Regexp, ...]  #: in order of dependency

    def value(self, resource: Mapping[str, Value]) -> object:
        """Evaluate for a resource: a Python value, or `classad2.Value`."""
        return self._evaluate(_ad(self.names, resource))

    @staticmethod
    def values_of(
        programs: Iterable["Program"], names: Iterable[str], resource: Mapping[str, Value]
    ) -> list[object]:
        """Evaluate several programs for a resource of which only `names` matter; its ad is built once."""
        ad = _ad(names, resource)
        return [each._evaluate(ad) for each in programs]  # noqa: SLF001  # its own class

    def values(
        self, resource: Mapping[str, Value], options: Mapping[str, Sequence[Value | None]]
    ) -> Iterator[object]:
        """Evaluate for each combination of the options (None: absent); those of the last name change first.

        The resource has fixed parameters only, without the names in `options`.
        """
        ad = _ad(self.names, resource)
        for combination in itertools.product(*options.values()):
            for name, has in zip(options, combination, strict=True):
                _put(ad, name, has)
            yield self._evaluate(ad)

    def _evaluate(self, ad: Any) -> object:
        try:
            for call in self.regexps:
                ad[call.name] = call.result(ad)
            return self.tree.eval(ad)
        except (classad2.ClassAdException, UnicodeDecodeError):
            # The latter: `substr` counts bytes and may split a character.
            return classad2.Value.Error
        finally:
            # In another program this may be the name of a parameter.
            for call in self.regexps:
                ad.pop(call.name, None)


def _ad(names: Iterable[str], resource: Mapping[str, Value]) -> Any:
    ad = classad2.ClassAd()
    for name in names:
        _put(ad, name, lookup(resource, name))
    return ad


def _put(ad: Any, name: str, has: Value | None) -> None:
    if has is None:
        ad.pop(attribute_key(name), None)
    else:
        # `as_value` again: the library crashes the process on text that is not valid Unicode.
        ad[attribute_key(name)] = _library_text(as_value(has, name))


def _library_text(value: Value) -> object:
    if isinstance(value, tuple):
        return [_library_text(item) for item in value]
    return unicodedata.normalize("NFC", value) if isinstance(value, str) else value


def read(source: SourceText) -> Program:
    """Parse, check and compile an expression; `InvalidInput` also for one that users may not evaluate.

    Programs of short texts are cached; of an invalid one the position in its file is found each time.
    """
    if len(source.text) <= SHORT and (known := _find_program(source.text)) is not None:
        return known
    return _compile(source)


@lru_cache(maxsize=1024)
def _find_program(text: str) -> Program | None:
    """Return the program of a short text; None: it is invalid."""
    try:
        return _compile(SourceText(text=text, path="Requirements"))
    except InvalidInput:
        return None


def _compile(source: SourceText) -> Program:
    if len(source.text) > MAX_SIZE:
        raise source.fault(0, f"{len(source.text)} characters, allowed are {MAX_SIZE}")
    node = read_expression(source)
    check(node, source)
    operands = tuple(conjuncts(node))
    try:
        parts = tuple(_operand(part, source.text) for part in operands) if len(operands) > 1 else ()
        return replace(compile_node(node, source.text), parts=parts)
    except classad2.ClassAdException as error:
        raise source.fault(node.start, "HTCondor's ClassAd library cannot read this") from error


def _operand(node: Node, text: str) -> Program:
    """Compile one operand of `&&`, where a number counts as true or false."""
    counted = Chain(level=AND, first=Literal(value=True), rest=(("&&", node),))
    return compile_node(counted, text[node.start : node.end])


def conjuncts(node: Node) -> Iterator[Node]:
    """Yield the operands of the outermost `&&`, or the expression itself."""
    if isinstance(node, Chain) and node.level == AND:
        for operand in children(node):
            yield from conjuncts(operand)
    else:
        yield node


def compile_node(node: Node, text: str = "") -> Program:
    """Compile a part of an expression that is already parsed and checked."""
    names = resource_names(node)
    calls: list[_Regexp] = []
    free = _free_prefix(names)

    def override(part: Node) -> str | None:
        if isinstance(part, Attribute):
            return attribute_name(resource_name(part) or "")
        if not isinstance(part, Call) or not restrictions.is_regexp(part):
            return None
        subject = classad2.ExprTree(render(part.arguments[1], override))
        call = _Regexp(
            name=f"{free}{len(calls)}",
            pattern=restrictions.pattern_of(part),
            subject=subject,
            of_list=part.name.lower() != "regexp",
        )
        calls.append(call)
        return call.name

    tree = classad2.ExprTree(render(node, override))
    return Program(text=text, names=tuple(names.values()), parts=(), tree=tree, regexps=tuple(calls))


def _free_prefix(names: Mapping[str, str]) -> str:
    """Return a prefix for names of results that no attribute of the expression has."""
    prefix = "regexp_"
    while any(name.startswith(prefix) for name in names):
        prefix += "_"
    return prefix


#: Text for an attribute that the resource does not have.
ABSENT = "is absent"


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

    def has(self, text: str, resource: Mapping[str, Value]) -> str | None:
        """Format the resource's values of the attributes of an operand; None: it has no attributes."""
        seen = [(name, lookup(resource, name)) for name in self.programs[text].names]
        formatted = (
            f"{name} {ABSENT}" if value is None else f"{name} = {format_value(value)}" for name, value in seen
        )
        return "; ".join(formatted) or None


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


@lru_cache(maxsize=64)
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


def make_reason(text: str, has: str | None, kind: ReasonKind) -> Reason:
    """Return the reason that a part of an expression, as written, gives with the resource's values."""
    return Reason(requirement="Requirements", wanted=text, has=has, kind=kind)


def _kind(value: object) -> ReasonKind:
    if value is classad2.Value.Error:
        return ReasonKind.ERROR
    return ReasonKind.UNDEFINED if value is classad2.Value.Undefined else ReasonKind.EXPRESSION


@lru_cache(maxsize=1024)
def _try_compile(text: str) -> Program | str:
    """Return the program of a text, or the message if it is invalid."""
    try:
        return read(SourceText(text=text, path="Requirements"))
    except InvalidInput as error:
        return str(error)
