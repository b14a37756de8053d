"""The grammar of ClassAds: tokens into trees, with errors that point at the place."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

from requirements.errors import InvalidInput
from requirements.source import Source
from requirements.syntax import (
    KEYWORDS,
    PRECEDENCE,
    Ad,
    Attribute,
    Call,
    Chain,
    Conditional,
    ListOf,
    Literal,
    Node,
    Selection,
    Special,
    Subscript,
    Unary,
    children,
)
from requirements.tokens import Token, TokenKind, scan
from requirements.values import Scalar, fold

#: Less than the library's own limits (165 parentheses, 124 conditions in parentheses), beyond which it
#: fails without saying why, and so little that no reader of trees runs out of Python's stack.
MAX_DEPTH = 120

_WORDS: dict[str, Scalar | Special] = {
    "true": True,
    "false": False,
    "undefined": Special.UNDEFINED,
    "error": Special.ERROR,
}
_SPELLED = {"is": "=?=", "isnt": "=!="}
_NO_NUMBERS = frozenset({"inf", "infinity", "nan"})
_MEANT = {"and": "&&", "or": "||", "not": "!", "=": "=="}
_TOO_DEEP = f"nested deeper than {MAX_DEPTH} levels"


def read_expression(source: Source) -> Node:
    """The tree of a text that is one expression.

    Raises:
        InvalidInput: At the first place where the text is no ClassAd expression.
    """
    reader = _Reader(source)
    node = reader.expression()
    reader.expect_end()
    _check_depth(node, source)
    return node


def read_ad(source: Source) -> Ad:
    """The tree of a text that is one ad; the brackets around it may be left out, as in a JDL.

    Names at the top may have dots (`Parameters.Input`), which ClassAds proper do not have.

    Raises:
        InvalidInput: At the first place where the text is no ad, or where a name stands again.
    """
    reader = _Reader(source)
    if reader.at("["):
        ad = reader.ad(dotted=True)
        while reader.take(";"):
            pass
    else:
        ad = reader.bare_ad()
    reader.expect_end()
    _check_depth(ad, source)
    return ad


def _check_depth(node: Node, source: Source) -> None:
    """Refuse a tree too deep to walk: `1*1+1<<1<1==1` is deep without a parenthesis."""
    waiting = [(node, 1)]
    while waiting:
        part, depth = waiting.pop()
        if depth > MAX_DEPTH:
            raise source.fault(part.start, _TOO_DEEP)
        waiting.extend((child, depth + 1) for child in children(part))


class _Reader:
    """Recursive descent over the tokens of one text."""

    def __init__(self, source: Source) -> None:
        self._source = source
        self._tokens = scan(source)
        self._token = next(self._tokens)
        self._ended = 0  # where the last taken token ends
        self._depth = 0

    def expect_end(self) -> None:
        if self._token.kind is not TokenKind.END:
            raise self._unexpected("the end")

    def bare_ad(self) -> Ad:
        if self._token.kind is TokenKind.END:
            raise self._source.fault(self._token.start, "there is nothing to read")
        start = self._token.start
        entries = self._entries(None, dotted=True)
        return Ad(entries=entries, start=start, end=self._ended)

    def ad(self, *, dotted: bool = False) -> Ad:
        start = self._expect("[")
        with self._deeper():
            entries = self._entries("]", dotted=dotted)
        self._expect("]")
        return Ad(entries=entries, start=start, end=self._ended)

    def _entries(self, closing: str | None, *, dotted: bool) -> tuple[tuple[str, Node], ...]:
        entries: list[tuple[str, Node]] = []
        spelled: dict[str, str] = {}
        while True:
            while self.take(";"):
                pass
            if self._ends(closing):
                return tuple(entries)
            start = self._token.start
            name = self._entry_name(dotted=dotted)
            if (first := spelled.get(fold(name))) is not None:
                raise self._source.fault(start, f"{name} is named twice, the first time as {first}")
            spelled[fold(name)] = name
            self._expect("=", f"after the name {name}")
            entries.append((name, self.expression()))
            if not (self.at(";") or self._ends(closing)):
                raise self._unexpected(f"a semicolon after the value of {name}")

    def _ends(self, closing: str | None) -> bool:
        """Whether an ad ends here: by its bracket or with the text."""
        return self._token.kind is TokenKind.END or (closing is not None and self.at(closing))

    def _entry_name(self, *, dotted: bool) -> str:
        names = [self._name("a name")]
        while dotted and self.take("."):
            names.append(self._name("a name after the dot"))
        return ".".join(names)

    def expression(self, lowest: int = 0) -> Node:
        """Operands with operators that bind at least as close as `lowest` between them."""
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
        rest: list[tuple[str, Node]] = []
        while PRECEDENCE.get(operator := self._operator()) == level:
            self._next()
            with self._deeper():
                rest.append((operator, self.expression(level + 1)))
        if isinstance(first, Chain) and first.level == level:
            rest[:0] = first.rest
            first = first.first
        return Chain(level=level, first=first, rest=tuple(rest), start=first.start, end=self._ended)

    def _conditional(self, condition: Node) -> Conditional:
        self._expect("?")
        with self._deeper():
            then = None if self.at(":") else self.expression()
            self._expect(":", "of the condition")
            otherwise = self.expression()
        return Conditional(
            condition=condition, then=then, otherwise=otherwise, start=condition.start, end=self._ended
        )

    def _operand(self) -> Node:
        start = self._token.start
        if self._token.kind is TokenKind.OPERATOR and self._token.value in ("-", "+", "!", "~"):
            operator = str(self._next().value)
            with self._deeper():
                operand = self._operand()
            return Unary(operator=operator, operand=operand, start=start, end=self._ended)
        return self._postfixed(self._primary())

    def _postfixed(self, node: Node) -> Node:
        start = node.start
        for _ in range(MAX_DEPTH):
            if self.take("."):
                name = self._name("a name after the dot")
                node = _selected(node, name, end=self._ended)
            elif self.take("["):
                with self._deeper():
                    index = self.expression()
                self._expect("]")
                node = Subscript(of=node, index=index, start=start, end=self._ended)
            else:
                return node
        raise self._source.fault(start, _TOO_DEEP)

    def _primary(self) -> Node:
        token = self._token
        match token.kind:
            case TokenKind.STRING:
                return self._text()
            case TokenKind.NUMBER:
                self._next()
                return Literal(value=token.value, start=token.start, end=token.end)
            case TokenKind.NAME:
                return self._word()
            case TokenKind.QUOTED_NAME:
                self._next()
                return Attribute(names=(str(token.value),), start=token.start, end=token.end)
        match token.value:
            case "(":
                return self._parenthesis()
            case "{":
                items = self._items("{", "}")
                return ListOf(items=items, start=token.start, end=self._ended)
            case "[":
                return self.ad()
            case ".":
                self._next()
                name = self._name("a name after the dot")
                return Attribute(names=(name,), absolute=True, start=token.start, end=self._ended)
        raise self._unexpected("a value")

    def _text(self) -> Literal:
        """One text, or several in a row, which are one."""
        start = self._token.start
        parts: list[str] = []
        while self._token.kind is TokenKind.STRING:
            parts.append(str(self._next().value))
        return Literal(value="".join(parts), start=start, end=self._ended)

    def _word(self) -> Node:
        token = self._token
        word = str(token.value)
        lower = word.lower()
        if lower in _SPELLED:
            raise self._unexpected("a value")
        self._next()
        if lower in _WORDS:
            return Literal(value=_WORDS[lower], start=token.start, end=token.end)
        if self.at("("):
            arguments = self._items("(", ")")
            return Call(name=word, arguments=arguments, start=token.start, end=self._ended)
        if lower in _NO_NUMBERS:
            raise self._source.fault(token.start, f"{word} is not a number to compare with")
        return Attribute(names=(word,), start=token.start, end=token.end)

    def _parenthesis(self) -> Node:
        start = self._expect("(")
        with self._deeper():
            node = self.expression()
        self._expect(")")
        return replace(node, start=start, end=self._ended)

    def _items(self, opening: str, closing: str) -> tuple[Node, ...]:
        self._expect(opening)
        items: list[Node] = []
        with self._deeper():
            while not self.at(closing) or items:
                items.append(self.expression())
                if not self.take(","):
                    break
        self._expect(closing, "or a comma")
        return tuple(items)

    def _operator(self) -> str:
        """The operator at hand, words in their sign; empty if there is none."""
        if self._token.kind is TokenKind.OPERATOR:
            return str(self._token.value)
        if self._token.kind is TokenKind.NAME:
            return _SPELLED.get(str(self._token.value).lower(), "")
        return ""

    def _name(self, wanted: str) -> str:
        token = self._token
        name = str(token.value)
        quoted = token.kind is TokenKind.QUOTED_NAME
        if not quoted and (token.kind is not TokenKind.NAME or name.lower() in KEYWORDS):
            raise self._unexpected(wanted)
        self._next()
        return name

    def at(self, sign: str) -> bool:
        return self._token.kind is TokenKind.OPERATOR and self._token.value == sign

    def take(self, sign: str) -> bool:
        """Whether the sign stands here; if so, it is passed."""
        there = self.at(sign)
        if there:
            self._next()
        return there

    def _expect(self, sign: str, why: str = "") -> int:
        start = self._token.start
        if not self.take(sign):
            raise self._unexpected(f"{sign} {why}".rstrip())
        return start

    def _next(self) -> Token:
        taken = self._token
        self._ended = taken.end
        if taken.kind is not TokenKind.END:
            self._token = next(self._tokens)
        return taken

    @contextmanager
    def _deeper(self) -> Iterator[None]:
        self._depth += 1
        if self._depth > MAX_DEPTH:
            raise self._source.fault(self._token.start, _TOO_DEEP)
        yield
        self._depth -= 1

    def _unexpected(self, wanted: str) -> InvalidInput:
        token = self._token
        seen = self._source.text[token.start : min(token.end, token.start + 40)] or "the end"
        meant = None if wanted.startswith("a name") else _MEANT.get(seen.lower())
        return self._source.fault(token.start, f"{seen} where {wanted} should stand", meant)


def _selected(node: Node, name: str, *, end: int) -> Attribute | Selection:
    if isinstance(node, Attribute):
        return replace(node, names=(*node.names, name), end=end)
    return Selection(of=node, name=name, start=node.start, end=end)
