"""An expression of a user, made ready for HTCondor's own library to evaluate.

What the library gets is not the text but what was understood of it, written anew: the resource is the only
scope, comments and everything beyond the expression are gone, and regular expressions are computed before.
"""

import itertools
import unicodedata
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import classad2
import htcondor2  # noqa: F401  # registers functions of HTCondor, such as stringListMember, with classad2

from requirements.classad import restrictions
from requirements.classad.parser import read_expression
from requirements.classad.restrictions import MAX_SIZE, check, parts_of, resource_name
from requirements.classad.source_text import SourceText
from requirements.classad.syntax_tree import (
    AND,
    Attribute,
    Call,
    Chain,
    Literal,
    Node,
    attribute_key,
    attribute_name,
    children,
    render,
)
from requirements.values import Value, as_value, lookup


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
            return restrictions.matches(self.pattern, subject)
        if isinstance(subject, list):
            subject = [item.eval(ad) if isinstance(item, classad2.ExprTree) else item for item in subject]
        return restrictions.matches_member(self.pattern, subject)


@dataclass(frozen=True, slots=True, kw_only=True)
class Program:
    """An expression, or a part of one, ready to be evaluated again and again."""

    text: str  #: as it was written
    names: tuple[str, ...]  #: parameters of the resource that it asks for, as spelled first
    parts: tuple["Program", ...]  #: what must all count as true; empty for a part that has none
    tree: Any  #: the library's ExprTree
    regexps: tuple[_Regexp, ...]  #: in the order in which they need each other

    def value(self, resource: Mapping[str, Value]) -> object:
        """What it is for a resource: a Python value, or `classad2.Value`."""
        return self._of(_ad(self.names, resource))

    @staticmethod
    def values_of(
        programs: Iterable["Program"], names: Iterable[str], resource: Mapping[str, Value]
    ) -> list[object]:
        """What several are for a resource of which only these names matter; the library is told once."""
        ad = _ad(names, resource)
        return [each._of(ad) for each in programs]  # noqa: SLF001  # its own class

    def values(
        self, resource: Mapping[str, Value], options: Mapping[str, Sequence[Value | None]]
    ) -> Iterator[object]:
        """What it is for each combination of the options, the last name's options changing first.

        Args:
            resource: What is known; of the names in `options` it says nothing.
            options: For some of `names`, what each may be; None: absent.
        """
        ad = _ad(self.names, resource)
        for combination in itertools.product(*options.values()):
            for name, has in zip(options, combination, strict=True):
                _put(ad, name, has)
            yield self._of(ad)

    def _of(self, ad: Any) -> object:
        try:
            for call in self.regexps:
                ad[call.name] = call.result(ad)
            return self.tree.eval(ad)
        except (classad2.ClassAdException, UnicodeDecodeError):
            # The latter: `substr` counts bytes, half a character is no text.
            return classad2.Value.Error
        finally:
            # To another program such a name may be one of the resource.
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
        # `as_value` again: at text that is no Unicode the library ends the process.
        ad[attribute_key(name)] = _library_text(as_value(has, name))


def _library_text(value: Value) -> object:
    if isinstance(value, tuple):
        return [_library_text(item) for item in value]
    return unicodedata.normalize("NFC", value) if isinstance(value, str) else value


def read(source: SourceText) -> Program:
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


def compile_node(node: Node) -> Program:
    """A part of an expression that was read and checked, ready for use by itself."""
    return _single(node, "")


def _program(node: Node, text: str) -> Program:
    operands = tuple(conjuncts(node))
    parts = tuple(_operand(part, text) for part in operands) if len(operands) > 1 else ()
    return replace(_single(node, text), parts=parts)


def _operand(node: Node, text: str) -> Program:
    """One operand of a `&&`, where a number counts as true or false."""
    start, end = node.start, node.end
    true = Literal(value=True, start=start, end=start)
    counted = Chain(level=AND, first=true, rest=(("&&", node),), start=start, end=end)
    return _single(counted, text[start:end])


def conjuncts(node: Node) -> Iterator[Node]:
    """The operands of the outermost `&&`; the expression itself if it is another."""
    if isinstance(node, Chain) and node.level == AND:
        for operand in children(node):
            yield from conjuncts(operand)
    else:
        yield node


def _single(node: Node, text: str) -> Program:
    names: dict[str, str] = {}
    for part in parts_of(node):
        if isinstance(part, Attribute) and (name := resource_name(part)):
            names.setdefault(attribute_key(name), name)
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
    """The beginning of names for results that no attribute of the expression has."""
    prefix = "regexp_"
    while any(name.startswith(prefix) for name in names):
        prefix += "_"
    return prefix
