"""Parser for ClassAds: tokens to trees, with errors that give the position.

Of an ad the names and the plain values, which are nearly all, are read as they are written; the rest is
expressions.
"""

import re
from dataclasses import replace
from typing import Final

from requirements.classad.lexer import MAX_DEPTH, Cursor, TokenKind
from requirements.classad.syntax_tree import (
    ELVIS,
    KEYWORDS,
    MOST_IN_AD,
    MOST_IN_EXPRESSION,
    PRECEDENCE,
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
from requirements.kept import keep
from requirements.values import Scalar, fold

_WORDS: dict[str, Scalar | Special] = {
    "true": True,
    "false": False,
    "undefined": Special.UNDEFINED,
    "error": Special.ERROR,
}
_SPELLED = {"is": "=?=", "isnt": "=!="}
#: A text without escapes or a whole number, and a list of these, which may be thousands. Without possessive
#: quantifiers: inside a repeated group those of Python 3.11.0 to 3.11.4 match what they should not.
_ITEM = re.compile(r'"(?P<text>[^"\\]*)"|(?P<number>0|[1-9][0-9]{0,14})(?![0-9A-Za-z_.])')
_ONE = re.sub(r"\?P<\w+>", "?:", _ITEM.pattern)
_LIST = re.compile(rf"\{{\s*(?:{_ONE})(?:\s*,\s*(?:{_ONE}))*\s*\}}")
_NO_NUMBERS = frozenset({"inf", "infinity", "nan"})
#: Characters of a text whose tree is cached.
SHORT: Final = 1000


def read_expression(source: SourceText) -> Node:
    """Parse a text that is one expression.

    The Requirements of a job are parsed for each of the steps that they go through, and again for equal jobs:
    so trees, which are immutable, are cached. An invalid text is parsed each time, for the position of the
    problem in its file.
    """
    if len(source.text) > SHORT:
        return _parse(source)
    return _find_tree(source.text) or _parse(source)


@keep(32, lambda _, text: 100 * len(text))
def _find_tree(text: str) -> Node | None:
    try:
        return _parse(SourceText(text=text, path=""))
    except InvalidInput:
        return None


def _parse(source: SourceText) -> Node:
    check_volume(source, MOST_IN_EXPRESSION)
    reader = _Reader(source)
    node = reader.whole_expression()
    reader.expect_end()
    return node


#: Blanks and comments. Nothing follows what repeats, so that no text takes long.
_BETWEEN = r"(?:\A|\n)[ \t\r\v\f]*\#[^\n]*|[ \t\r\v\f]+|\n|//[^\n]*|/\*.*?\*/"
_GAP, _GAPS, _AFTER_AD = (re.compile(f"(?:{_BETWEEN}{more})*", re.DOTALL) for more in ("", "|;", "|[;,]"))
#: A name as nearly all are, and the sign behind it.
_NAME = re.compile(r"([A-Za-z_][A-Za-z0-9_]*(?:\.[A-Za-z_][A-Za-z0-9_]*)*)[ \t\r\n\v\f]*=(?!=|[?!]=)")
#: Values that mean what is written.
_PLAIN = re.compile(rf"{_ITEM.pattern}|{_LIST.pattern}")
#: Another value without brackets, comments and escapes.
_SIMPLE = re.compile(r"""(?:[^;\[\]"'\\/#]+|"[^"\\]*")+""")
_BLANKS = " \t\r\n\v\f"


def read_ad(source: SourceText) -> Ad:
    """Parse a text that is one ad; the outer brackets may be left out, as in a JDL.

    Names at the top may have dots (`Parameters.Input`), unlike in ClassAds proper.
    """
    check_volume(source, MOST_IN_AD)
    source.check_characters()
    if (start := _skip(_GAP, source, 0)) == len(source.text):
        raise source.fault(start, "there is nothing to read")
    closing = "]" if source.text[start] == "[" else ""
    ad = _read_entries(source, start, closing, len(closing))
    if (end := _skip(_GAPS, source, ad.end)) < len(source.text):
        raise _Reader(source, end).unexpected("the end")
    return ad


def read_ads(source: SourceText) -> tuple[Ad, ...]:
    """Parse any number of ads in brackets, one after the other or in a list."""
    start = _skip(_GAP, source, 0)
    in_list = source.text.startswith("{", start)
    end = _skip(_GAP, source, start + in_list)
    found: list[Ad] = []
    while source.text.startswith("[", end):
        found.append(_read_entries(source, end, "]", 1))
        end = _skip(_AFTER_AD, source, found[-1].end)
    reader = _Reader(source, end)
    if in_list:
        reader.expect("}", "or an ad")
    if not reader.is_at_end():
        raise reader.unexpected("an ad")
    return tuple(found)


def _skip(gap: re.Pattern[str], source: SourceText, start: int) -> int:
    found = gap.match(source.text, start)
    return found.end() if found else start


def _read_entries(source: SourceText, begin: int, closing: str, depth: int, *, is_inner: bool = False) -> Ad:
    """Read names and values up to the closing bracket, or without one to the end of the text."""
    text = source.text
    entries: dict[str, tuple[str, Node]] = {}
    at = begin + len(closing)
    while (start := _skip(_GAPS, source, at)) < len(text) and text[start] != closing:
        usual = _NAME.match(text, start)
        if usual and KEYWORDS.isdisjoint(usual[1].lower().split(".")) and not (is_inner and "." in usual[1]):
            name, at = usual[1], _skip(_GAP, source, usual.end())
        else:
            reader = _Reader(source, start)
            name, at = reader.entry_name(dotted=not is_inner), reader.token.start
        if (first := entries.get(fold(name))) is not None:
            raise source.fault(start, f"{name} is named twice, the first time as {first[0]}")
        found = _find_value(source, at, closing)
        if found is None:
            reader = _Reader(source, at, depth)
            found = reader.whole_expression(), reader.token.start
            if not (reader.is_at(";") or reader.is_at_end() or reader.is_at(closing)):
                raise reader.unexpected(f"a semicolon after the value of {name}")
        entries[fold(name)] = name, found[0]
        at = found[1]
    if closing and start == len(text):
        raise source.fault(start, "the end where ] should stand")
    return Ad(entries=tuple(entries.values()), start=begin, end=start + len(closing))


def _find_value(source: SourceText, start: int, closing: str) -> tuple[Node, int] | None:
    """Find a value that needs no parser, or whose tree is cached; with the position of the sign behind it."""
    for form in (_PLAIN, _SIMPLE):
        if (found := form.match(source.text, start)) is None:
            continue
        written = found[0].rstrip(_BLANKS)
        end = start + len(written)
        after = _skip(_GAP, source, end)
        if source.text[after : after + 1] not in ("", ";", closing):
            continue
        if form is _SIMPLE:
            tree = _find_tree(written) if len(written) <= SHORT else None
            # The positions of its parts are those in its own text: of use only in a list.
            if tree is None or isinstance(tree, ListOf):
                return None
            return replace(tree, start=start, end=end), after
        items = _list_items(source, start, end)
        return ListOf(items=items, start=start, end=end) if written[0] == "{" else items[0], after
    return None


def _list_items(source: SourceText, start: int, end: int) -> tuple[Literal, ...]:
    return tuple(
        Literal(
            value=int(each["number"]) if each["text"] is None else each["text"],
            start=each.start(),
            end=each.end(),
        )
        for each in _ITEM.finditer(source.text, start, end)
    )


def _check_depth(node: Node, reader: Cursor) -> None:
    """Refuse a tree too deep to walk: `1*1+1<<1<1==1` is deep without a parenthesis."""
    waiting = [(node, 1)]
    while waiting:
        part, depth = waiting.pop()
        if depth > MAX_DEPTH:
            raise reader.too_deep(part.start)
        waiting.extend((child, depth + 1) for child in children(part))


class _Reader(Cursor):
    def _ad(self) -> Ad:
        with self.deeper():
            ad = _read_entries(self.source, self.token.start, "]", self.depth, is_inner=True)
        self.move_to(ad.end)
        return ad

    def entry_name(self, *, dotted: bool) -> str:
        """Parse the name of an entry and the sign behind it."""
        names = [self._name("a name")]
        while dotted and self.take("."):
            names.append(self._name("a name after the dot"))
        name = ".".join(names)
        self.expect("=", f"after the name {name}")
        return name

    def whole_expression(self) -> Node:
        """Parse an expression that is no part of another one."""
        node = self.expression()
        _check_depth(node, self)
        return node

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
                items = self._plain_items() or self._items("{", "}")
                return ListOf(items=items, start=token.start, end=self.ended)
            case "[":
                return self._ad()
            case ".":
                self.next()
                name = self._name("a name after the dot")
                return Attribute(names=(name,), absolute=True, start=token.start, end=self.ended)
        raise self.unexpected("a value")

    def _plain_items(self) -> tuple[Node, ...]:
        """Parse a list of plain values in one step; empty if it is another list."""
        found = _LIST.match(self.source.text, self.token.start)
        if found is None:
            return ()
        self.move_to(found.end())
        return _list_items(self.source, *found.span())

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
