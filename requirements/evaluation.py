"""Evaluation of ClassAd expressions over a resource by HTCondor's own library.

Three-valued logic and functions are the library's. Only `true` itself counts: undefined and Error are truthy
integers in Python, and not true here.
"""

import unicodedata
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

import classad2
import htcondor2  # noqa: F401  # registers functions of HTCondor, such as stringListMember, with classad2

from requirements import regexps
from requirements.errors import InvalidInput
from requirements.grammar import read_expression
from requirements.rendering import attribute_key, attribute_name, rendered
from requirements.restrictions import MAX_SIZE, check, parts_of, resource_name
from requirements.rules import ReasonKind
from requirements.source import Source
from requirements.syntax import AND, Attribute, Call, Chain, Node, children
from requirements.values import Value, as_value, lookup, shown


@dataclass(frozen=True, slots=True, kw_only=True)
class FailingPart:
    """A part of an expression that is not true, so that the whole is not."""

    text: str  #: the part as it was written
    has: str | None  #: what the resource says of the attributes in it
    kind: ReasonKind


@dataclass(frozen=True, slots=True, kw_only=True)
class _Regexp:
    """A call of a regular expression that is replaced by an attribute with its result."""

    name: str
    pattern: Any
    subject: Any  # ExprTree
    of_list: bool

    def result(self, ad: Any) -> object:
        subject = self.subject.eval(ad)
        if not self.of_list:
            return regexps.matches(self.pattern, subject)
        if isinstance(subject, list):
            subject = [item.eval(ad) if isinstance(item, classad2.ExprTree) else item for item in subject]
        return regexps.matches_member(self.pattern, subject)


@dataclass(frozen=True, slots=True, kw_only=True)
class Program:
    """An expression, or a part of one, ready to be evaluated again and again."""

    text: str  #: as it was written
    names: tuple[str, ...]  #: parameters of the resource that it asks for, as spelled first
    parts: tuple["Program", ...]  #: what must all be true; empty for a part that has none
    tree: Any  #: the library's ExprTree
    regexps: tuple[_Regexp, ...]  #: in the order in which they need each other

    def value(self, resource: Mapping[str, Value]) -> object:
        """What it is for a resource: a Python value, or `classad2.Value`."""
        ad = classad2.ClassAd()
        for name in self.names:
            has = lookup(resource, name)
            # `as_value` again: at text that is no Unicode the library ends the process.
            if has is not None:
                ad[attribute_key(name)] = _for_library(as_value(has, name))
        try:
            for call in self.regexps:
                ad[call.name] = call.result(ad)
            return self.tree.eval(ad)
        except classad2.ClassAdException:
            return classad2.Value.Error


def _for_library(value: Value) -> object:
    if isinstance(value, tuple):
        return [_for_library(item) for item in value]
    return unicodedata.normalize("NFC", value) if isinstance(value, str) else value


def read(source: Source) -> Program:
    """The expression of a text, ready for use.

    Raises:
        InvalidInput: It is no ClassAd expression, or one that a user may not evaluate here.
    """
    if len(source.text) > MAX_SIZE:
        raise source.fault(0, f"{len(source.text)} characters, allowed are {MAX_SIZE}")
    node = read_expression(source)
    check(node, source)
    try:
        return _program(node, source.text)
    except classad2.ClassAdException as error:
        raise source.fault(node.start, "HTCondor's ClassAd library cannot read this") from error


def is_true(text: str, resource: Mapping[str, Value]) -> bool:
    """Whether the expression is true of the resource: not undefined, not Error, not a number."""
    known = _known(text)
    return isinstance(known, Program) and known.value(resource) is True


def failing_parts(text: str, resource: Mapping[str, Value]) -> tuple[FailingPart, ...]:
    """The operands of the outermost `&&` that are not true; empty if and only if the whole is true.

    A stored expression that no longer reads as one is an error that says so, since the others have to go on.
    """
    known = _known(text)
    if isinstance(known, str):
        return (FailingPart(text=text, has=known, kind=ReasonKind.ERROR),)
    whole = known.value(resource)
    if whole is True:
        return ()
    values = [(part, part.value(resource)) for part in known.parts]
    failed = [(part, value) for part, value in values if value is not True] or [(known, whole)]
    return tuple(
        FailingPart(text=part.text, has=_has(part, resource), kind=_kind(value)) for part, value in failed
    )


def _kind(value: object) -> ReasonKind:
    if value is classad2.Value.Error:
        return ReasonKind.ERROR
    return ReasonKind.UNDEFINED if value is classad2.Value.Undefined else ReasonKind.EXPRESSION


def _has(part: Program, resource: Mapping[str, Value]) -> str | None:
    seen = [(name, lookup(resource, name)) for name in part.names]
    said = (f"{name} is absent" if value is None else f"{name} = {shown(value)}" for name, value in seen)
    return "; ".join(said) or None


@lru_cache(maxsize=4096)
def _known(text: str) -> Program | str:
    """The program of a text; what is wrong if it is none."""
    try:
        return read(Source(text=text, path="Requirements"))
    except InvalidInput as error:
        return str(error)


def _program(node: Node, text: str) -> Program:
    operands = tuple(_conjuncts(node))
    parts = (
        tuple(_single(part, text[part.start : part.end]) for part in operands) if len(operands) > 1 else ()
    )
    return replace(_single(node, text), parts=parts)


def _conjuncts(node: Node) -> Iterator[Node]:
    if isinstance(node, Chain) and node.level == AND:
        for operand in children(node):
            yield from _conjuncts(operand)
    else:
        yield node


def _single(node: Node, text: str) -> Program:
    names: dict[str, str] = {}
    for part in parts_of(node):
        if isinstance(part, Attribute) and (name := resource_name(part)):
            names.setdefault(attribute_key(name), name)
    calls: list[_Regexp] = []
    prefix = "regexp_"
    while any(key.startswith(prefix) for key in names):
        prefix += "_"

    def override(part: Node) -> str | None:
        if isinstance(part, Attribute):
            return attribute_name(resource_name(part) or "")
        if not isinstance(part, Call) or part.name.lower() not in regexps.FUNCTIONS:
            return None
        subject = classad2.ExprTree(rendered(part.arguments[1], override))
        calls.append(
            _Regexp(
                name=f"{prefix}{len(calls)}",
                pattern=regexps.pattern_of(part),
                subject=subject,
                of_list=part.name.lower() != "regexp",
            )
        )
        return calls[-1].name

    tree = classad2.ExprTree(rendered(node, override))
    return Program(text=text, names=tuple(names.values()), parts=(), tree=tree, regexps=tuple(calls))
