"""Parser for ClassAds: tokens to trees, with errors that give the position."""

import re
from dataclasses import replace
from functools import lru_cache
from typing import Final

from requirements.classad.lexer import MAX_DEPTH, Cursor, TokenKind
from requirements.classad.syntax_tree import (
    ELVIS,
    KEYWORDS,
    MOST_IN_AD,
    MOST_IN_EXPRESSION,
    PRECEDENCE,
    TEXTS,
    Ad,
    Attribute,
    AttributeSelection,
    Call,
    Chain,
    Conditional,
    ListOf,
    Literal,
    Node,
    SourceText,
    Special,
    Subscript,
    Unary,
    check_volume,
    children,
)
from requirements.errors import InvalidInput
from requirements.values import Scalar, fold

_WORDS: dict[str, Scalar | Special] = {
    "true": True,
    "false": False,
    "undefined": Special.UNDEFINED,
    "error": Special.ERROR,
}
_SPELLED = {"is": "=?=", "isnt": "=!="}
_PLAIN_TEXT = re.compile('"([^"]*)"')
_NO_NUMBERS = frozenset({"inf", "infinity", "nan"})
#: Characters of a text whose tree is cached, at up to 100 bytes each, and number of these trees.
SHORT: Final = 1000
_MOST_KEPT: Final = 1024


def read_expression(source: SourceText) -> Node:
    """Parse a text that is one expression.

    The Requirements of a job are parsed for each of the steps that they go through, and again for equal jobs:
    so trees, which are immutable, are cached. An invalid text is parsed each time, for the position of the
    problem in its file.
    """
    if len(source.text) > SHORT:
        return _parse(source)
    return _find_tree(source.text) or _parse(source)


@lru_cache(maxsize=_MOST_KEPT)
def _find_tree(text: str) -> Node | None:
    try:
        return _parse(SourceText(text=text, path=""))
    except InvalidInput:
        return None


def _parse(source: SourceText) -> Node:
    check_volume(source, MOST_IN_EXPRESSION)
    reader = _Reader(source)
    node = reader.expression()
    reader.expect_end()
    _check_depth(node, reader)
    return node


def read_ad(source: SourceText) -> Ad:
    """Parse a text that is one ad; the outer brackets may be left out, as in a JDL.

    Names at the top may have dots (`Parameters.Input`), unlike in ClassAds proper.
    """
    check_volume(source, MOST_IN_AD)
    reader = _Reader(source)
    if reader.is_at("["):
        ad = reader.ad(dotted=True)
        while reader.take(";"):
            pass
    else:
        ad = reader.bare_ad()
    reader.expect_end()
    _check_depth(ad, reader)
    return ad


def read_ads(source: SourceText) -> tuple[Ad, ...]:
    """Parse any number of ads in brackets, one after the other or in a list."""
    reader = _Reader(source)
    in_list = reader.take("{")
    found: list[Ad] = []
    while reader.is_at("["):
        found.append(reader.ad(dotted=True))
        while reader.take(";") or reader.take(","):
            pass
    if in_list:
        reader.expect("}", "or an ad")
    if not reader.is_at_end():
        raise reader.unexpected("an ad")
    for ad in found:
        _check_depth(ad, reader)
    return tuple(found)


def _check_depth(node: Node, reader: Cursor) -> None:
    """Refuse a tree too deep to walk: `1*1+1<<1<1==1` is deep without a parenthesis."""
    waiting = [(node, 1)]
    while waiting:
        part, depth = waiting.pop()
        if depth > MAX_DEPTH:
            raise reader.too_deep(part.start)
        waiting.extend((child, depth + 1) for child in children(part))


class _Reader(Cursor):
    def bare_ad(self) -> Ad:
        if self.is_at_end():
            raise self.source.fault(self.token.start, "there is nothing to read")
        start = self.token.start
        entries = self._entries(None, dotted=True)
        return Ad(entries=entries, start=start, end=self.ended)

    def ad(self, *, dotted: bool = False) -> Ad:
        start = self.expect("[")
        with self.deeper():
            entries = self._entries("]", dotted=dotted)
        self.expect("]")
        return Ad(entries=entries, start=start, end=self.ended)

    def _entries(self, closing: str | None, *, dotted: bool) -> tuple[tuple[str, Node], ...]:
        entries: list[tuple[str, Node]] = []
        spelled: dict[str, str] = {}
        while True:
            while self.take(";"):
                pass
            if self._ends(closing):
                return tuple(entries)
            start = self.token.start
            name = self._entry_name(dotted=dotted)
            if (first := spelled.get(fold(name))) is not None:
                raise self.source.fault(start, f"{name} is named twice, the first time as {first}")
            spelled[fold(name)] = name
            self.expect("=", f"after the name {name}")
            entries.append((name, self.expression()))
            if not (self.is_at(";") or self._ends(closing)):
                raise self.unexpected(f"a semicolon after the value of {name}")

    def _ends(self, closing: str | None) -> bool:
        """Whether an ad ends here: with its bracket or with the text."""
        return self.is_at_end() or (closing is not None and self.is_at(closing))

    def _entry_name(self, *, dotted: bool) -> str:
        names = [self._name("a name")]
        while dotted and self.take("."):
            names.append(self._name("a name after the dot"))
        return ".".join(names)

    def expression(self, lowest: int = 0) -> Node:
        """Parse operands and the operators between them that bind at least as tightly as `lowest`."""
        node = self._operand()
        while True:
            operator = self._operator()
            level = PRECEDENCE.get(operator, 0)
            if level and level >= lowest:
                node = self._chain(node, level)
            elif operator == "?" and lowest == 0:
                node = self._conditional(node)
            else:
                return node

    def _chain(self, first: Node, level: int) -> Chain:
        start = first.start  # before the parenthesis, if `first` is in one and becomes a part of this chain
        rest: list[tuple[str, Node]] = []
        while PRECEDENCE.get(operator := self._operator()) == level:
            self.next()
            with self.deeper():
                rest.append((operator, self.expression(level + 1)))
        if isinstance(first, Chain) and first.level == level:
            rest[:0] = first.rest
            first = first.first
        return Chain(level=level, first=first, rest=tuple(rest), start=start, end=self.ended)

    def _conditional(self, condition: Node) -> Conditional:
        self.expect("?")
        with self.deeper():
            then = self.expression()
            self.expect(":", "of the condition")
            otherwise = self.expression()
        return Conditional(
            condition=condition, then=then, otherwise=otherwise, start=condition.start, end=self.ended
        )

    def _operand(self) -> Node:
        start = self.token.start
        if self.token.kind is TokenKind.OPERATOR and self.token.value in ("-", "+", "!", "~"):
            operator = str(self.next().value)
            with self.deeper():
                operand = self._operand()
            return Unary(operator=operator, operand=operand, start=start, end=self.ended)
        return self._with_fallbacks(self._postfixed(self._primary()))

    def _with_fallbacks(self, node: Node) -> Node:
        """Parse the fallbacks of an operand that may be undefined: `a ?: b ?: c`."""
        rest: list[tuple[str, Node]] = []
        while self.take("?:"):
            with self.deeper():
                rest.append(("?:", self._fallback()))
        if not rest:
            return node
        return Chain(level=ELVIS, first=node, rest=tuple(rest), start=node.start, end=self.ended)

    def _fallback(self) -> Node:
        """Parse an operand without operators; the library accepts a sign only before numbers."""
        start = self.token.start
        if not self.take("-"):
            return self._postfixed(self._primary())
        if self.token.kind is not TokenKind.NUMBER:
            raise self.unexpected("a number")
        return Unary(operator="-", operand=self._primary(), start=start, end=self.ended)

    def _postfixed(self, node: Node) -> Node:
        start = node.start
        for _ in range(MAX_DEPTH):
            if self.take("."):
                name = self._name("a name after the dot")
                node = _selected(node, name, end=self.ended)
            elif self.take("["):
                with self.deeper():
                    index = self.expression()
                self.expect("]")
                node = Subscript(of=node, index=index, start=start, end=self.ended)
            else:
                return node
        raise self.too_deep(start)

    def _primary(self) -> Node:
        token = self.token
        match token.kind:
            case TokenKind.STRING:
                return self._text()
            case TokenKind.NUMBER:
                self.next()
                return Literal(value=token.value, start=token.start, end=token.end)
            case TokenKind.NAME:
                return self._word()
            case TokenKind.QUOTED_NAME:
                self.next()
                return Attribute(names=(str(token.value),), start=token.start, end=token.end)
        match token.value:
            case "(":
                return self._parenthesis()
            case "{":
                items = self._texts() or self._items("{", "}")
                return ListOf(items=items, start=token.start, end=self.ended)
            case "[":
                return self.ad()
            case ".":
                self.next()
                name = self._name("a name after the dot")
                return Attribute(names=(name,), absolute=True, start=token.start, end=self.ended)
        raise self.unexpected("a value")

    def _texts(self) -> tuple[Node, ...]:
        """Parse a list of plain texts in one step; empty if it is another list."""
        found = TEXTS.match(self.source.text, self.token.start)
        if found is None:
            return ()
        texts = _PLAIN_TEXT.finditer(self.source.text, found.start(), found.end())
        items = tuple(Literal(value=each[1], start=each.start(), end=each.end()) for each in texts)
        self.move_to(found.end())
        return items

    def _text(self) -> Literal:
        """Parse a text; adjacent texts are concatenated."""
        start = self.token.start
        parts: list[str] = []
        while self.token.kind is TokenKind.STRING:
            parts.append(str(self.next().value))
        return Literal(value="".join(parts), start=start, end=self.ended)

    def _word(self) -> Node:
        token = self.token
        word = str(token.value)
        lower = word.lower()
        if lower in _SPELLED:
            raise self.unexpected("a value")
        self.next()
        if lower in _WORDS:
            return Literal(value=_WORDS[lower], start=token.start, end=token.end)
        if self.is_at("("):
            arguments = self._items("(", ")")
            return Call(name=word, arguments=arguments, start=token.start, end=self.ended)
        if lower in _NO_NUMBERS:
            raise self.source.fault(token.start, f"{word} is not a number to compare with")
        return Attribute(names=(word,), start=token.start, end=token.end)

    def _parenthesis(self) -> Node:
        start = self.expect("(")
        with self.deeper():
            node = self.expression()
        self.expect(")")
        return replace(node, start=start, end=self.ended)

    def _items(self, opening: str, closing: str) -> tuple[Node, ...]:
        self.expect(opening)
        items: list[Node] = []
        with self.deeper():
            while not self.is_at(closing) or items:
                items.append(self.expression())
                if not self.take(","):
                    break
        self.expect(closing, "or a comma")
        return tuple(items)

    def _operator(self) -> str:
        """Return the current operator, with words as signs; empty if there is none."""
        if self.token.kind is TokenKind.OPERATOR:
            return str(self.token.value)
        if self.token.kind is TokenKind.NAME:
            return _SPELLED.get(str(self.token.value).lower(), "")
        return ""

    def _name(self, wanted: str) -> str:
        token = self.token
        name = str(token.value)
        quoted = token.kind is TokenKind.QUOTED_NAME
        if not quoted and (token.kind is not TokenKind.NAME or name.lower() in KEYWORDS):
            raise self.unexpected(wanted)
        self.next()
        return name


def _selected(node: Node, name: str, *, end: int) -> Attribute | AttributeSelection:
    if isinstance(node, Attribute):
        return replace(node, names=(*node.names, name), end=end)
    return AttributeSelection(of=node, name=name, start=node.start, end=end)
