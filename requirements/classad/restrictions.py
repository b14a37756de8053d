"""Regular expressions in requirements, matched by RE2.

The ClassAd library's own matcher may take a quarter of a second for one hostile pattern, so it never sees
one: each `regexp(…)` is computed here, in time linear in the text, and handed to the library as its result.

The functions that an expression of a user may call: pure ones, by an allow-list.

Operations on constants that the library computes wrongly and silently: beyond 64 bits it wraps around.

How deep the ClassAd library descends into a tree: too deep, and it fails, or ends the process.

What an expression of a user may contain: pure functions, attributes of the resource, sane sizes.
"""

from collections.abc import Iterator
from functools import lru_cache
from typing import Any

import classad2
import re2

from requirements.classad.source_text import SourceText
from requirements.classad.syntax_tree import (
    AND,
    ELVIS,
    OR,
    UNARY,
    Ad,
    Attribute,
    AttributeSelection,
    Call,
    Chain,
    Literal,
    Node,
    Unary,
    binding,
    children,
)
from requirements.errors import InvalidInput, did_you_mean

#: The functions that take a pattern first, then a text or a list of texts, then options.
FUNCTIONS = frozenset({"regexp", "regexpmember"})
#: Characters of a pattern.
MAX_PATTERN = 200
#: Characters of a text to match.
MAX_SUBJECT = 4096
#: Bytes of a compiled pattern: refuses `(.{1,99}){1,99}`.
_MAX_MEMORY = 1 << 20
#: Options with the same meaning in both libraries.
_OPTIONS = frozenset("ims")

_UNDEFINED, _ERROR = classad2.Value.Undefined, classad2.Value.Error


def is_regexp(part: Node) -> bool:
    """Whether a part of an expression is a call of a regular expression."""
    return isinstance(part, Call) and part.name.lower() in FUNCTIONS


def pattern_fault(call: Call) -> str | None:
    """What is wrong with the pattern or the options of a call; None if nothing is."""
    texts = [_text(argument) for argument in (call.arguments[0], *call.arguments[2:])]
    pattern, options = texts[0], texts[1] if len(texts) > 1 else ""
    if pattern is None or options is None:
        return "pattern and options must be written out as text"
    if len(pattern) > MAX_PATTERN:
        return f"the pattern has {len(pattern)} characters, allowed are {MAX_PATTERN}"
    if not set(options.lower()) <= _OPTIONS:
        return f"the options are {options[:20]!r}, allowed are i, m and s"
    return refusal(pattern, options)


def refusal(pattern: str, options: str) -> str | None:
    """Why RE2 does not accept a pattern; None if it does."""
    try:
        compiled(pattern, options)
    except re2.error as error:
        reason = error.args[0].decode(errors="replace") if error.args else "no pattern of RE2"
        return f"the pattern is refused: {reason}"
    return None


def _text(argument: object) -> str | None:
    if isinstance(argument, Literal) and type(argument.value) is str:
        return argument.value
    return None


def pattern_of(call: Call) -> Any:
    """The compiled pattern of a call that has no fault."""
    texts = [_text(argument) or "" for argument in (call.arguments[0], *call.arguments[2:])]
    return compiled(texts[0], texts[1] if len(texts) > 1 else "")


@lru_cache(maxsize=1024)
def compiled(pattern: str, options: str) -> Any:
    """The pattern ready for use.

    Raises:
        re2.error: RE2 does not accept it.
    """
    settings = re2.Options()
    settings.log_errors = False
    settings.max_mem = _MAX_MEMORY
    flags = f"(?{''.join(sorted(set(options.lower())))})" if options else ""
    return re2.compile(flags + pattern, options=settings)


def matches(pattern: Any, subject: object) -> object:
    """What `regexp(pattern, subject)` is: a boolean, or undefined or Error in the library's sense."""
    if isinstance(subject, str):
        return pattern.search(subject) is not None if len(subject) <= MAX_SUBJECT else _ERROR
    return _UNDEFINED if subject is _UNDEFINED else _ERROR


def matches_member(pattern: Any, subjects: object) -> object:
    """What `regexpMember(pattern, subjects)` is: true if one of a list of texts matches."""
    if not isinstance(subjects, list):
        return _UNDEFINED if subjects is _UNDEFINED else _ERROR
    answer: object = False
    for subject in subjects:
        found = matches(pattern, subject)
        if found is True or found is _ERROR:
            return found
        if found is _UNDEFINED:
            answer = found
    return answer


#: Spelling, with the least and the most arguments; None: any number. No clock, no chance, no `eval`,
#: nothing that builds long texts (`join`, `split`), and nothing that reads files (`userMap`).
_ALLOWED: dict[str, tuple[int, int | None]] = {
    **dict.fromkeys(
        ("isUndefined", "isError", "isString", "isInteger", "isReal", "isBoolean", "isList"), (1, 1)
    ),
    **dict.fromkeys(("int", "real", "string", "bool", "floor", "ceiling", "round"), (1, 1)),
    **dict.fromkeys(("size", "toLower", "toUpper", "sum", "avg", "min", "max"), (1, 1)),
    **dict.fromkeys(("member", "identicalMember", "pow", "quantize", "strcmp", "stricmp"), (2, 2)),
    **dict.fromkeys(
        ("versioncmp", "versionGT", "versionGE", "versionLT", "versionLE", "versionEQ"),
        (2, 2),
    ),
    **dict.fromkeys(("ifThenElse", "anyCompare", "allCompare", "version_in_range"), (3, 3)),
    **dict.fromkeys(
        ("stringListSize", "stringListSum", "stringListAvg", "stringListMin", "stringListMax"),
        (1, 2),
    ),
    **dict.fromkeys(
        (
            "stringListMember",
            "stringListIMember",
            "stringListsIntersect",
            "stringListSubsetMatch",
            "stringListISubsetMatch",
        ),
        (2, 3),
    ),
    **dict.fromkeys(("regexp", "regexpMember"), (2, 3)),
    "substr": (2, 3),
    "strcat": (1, None),
}
_BY_LOWER = {name.lower(): bounds for name, bounds in _ALLOWED.items()}


def call_fault(call: Call) -> tuple[str, str | None] | None:
    """What is wrong with a call, and which function was probably meant; None if nothing is wrong."""
    bounds = _BY_LOWER.get(call.name.lower())
    if bounds is None:
        return f"the function {call.name[:60]} is not allowed", did_you_mean(call.name, _ALLOWED)
    least, most = bounds
    given = len(call.arguments)
    if given < least or (most is not None and given > most):
        return f"{call.name} has {given} arguments, allowed are {_range(least, most)}", None
    if is_regexp(call) and (wrong := pattern_fault(call)):
        return f"{call.name}: {wrong}", None
    return None


def _range(least: int, most: int | None) -> str:
    if most is None:
        return f"{least} or more"
    return f"{least}" if least == most else f"{least} to {most}"


#: The integers of the library.
_LEAST, _MOST = -(2**63), 2**63 - 1
_SHIFTS = frozenset({"<<", ">>", ">>>"})
_TO_INTEGER = frozenset({"int", "floor", "ceiling", "round"})
_EXACT = {"+": int.__add__, "-": int.__sub__, "*": int.__mul__}


def faults(part: Node) -> Iterator[tuple[Node, str]]:
    """What of one part, by itself, would become another number, with what is wrong with it."""
    match part:
        case Call(name=name, arguments=(argument,)) if name.lower() in _TO_INTEGER:
            value = _number(_text_fault(argument))
            if value is not None and not _LEAST <= value <= _MOST:
                yield part, f"{name} of {value:g} is out of range, integers reach to {_MOST}"
        case Chain():
            yield from _chain_fault(part)


def _chain_fault(chain: Chain) -> Iterator[tuple[Node, str]]:
    for operator, operand in chain.rest:
        bits = _number(operand)
        if operator in _SHIFTS and isinstance(bits, int) and not 0 <= bits <= 63:
            yield operand, f"a shift by {bits:g} is out of range, allowed are 0 to 63"
    if any(not _LEAST <= total <= _MOST for total in _totals(chain)):
        yield chain, f"the result is out of range, integers reach to {_MOST}; write one number as 1.0 or 1e3"


def _totals(chain: Chain) -> Iterator[int]:
    """The exact results, step by step, as far as all operands are integers written out."""
    total = _number(chain.first)
    for operator, operand in chain.rest:
        number = _number(operand)
        if operator not in _EXACT or not (isinstance(total, int) and isinstance(number, int)):
            return
        total = _EXACT[operator](total, number)
        yield total


def _text_fault(node: Node) -> Node:
    """A text that is a number as that number."""
    if not isinstance(node, Literal) or not isinstance(node.value, str):
        return node
    try:
        return Literal(value=float(node.value), start=node.start, end=node.end)
    except ValueError:
        return node


def _number(node: Node) -> float | None:
    """The number that a constant is."""
    match node:
        case Unary(operator="-" | "+" as sign, operand=operand):
            value = _number(operand)
            return value if value is None or sign == "+" else -value
        case Literal(value=bool()):
            return None
        case Literal(value=int() | float() as value):
            return value
        case _:
            return None


#: Levels of an evaluation before the library fails: measured, and held by a test. A sum of some
#: hundred thousand terms overruns its stack as soon as it is read.
MAX_HEIGHT = 401


def check_height(node: Node, source: SourceText) -> None:
    """Refuse a tree into which the library cannot descend.

    Raises:
        InvalidInput: It is too high.
    """
    if height(node) > MAX_HEIGHT:
        message = "too many operations inside each other; parentheses around parts of it, or member(), help"
        raise source.fault(node.start, message)


def height(node: Node) -> int:
    """The levels that the library descends to evaluate the tree: in a chain, one for each operand."""
    match node:
        case Attribute():
            return 2
        case Chain(first=first, rest=rest, level=level):
            count = len(rest)
            right = (_operand_height(each, level + 1) + count - place for place, (_, each) in enumerate(rest))
            highest = max(_operand_height(first, level) + count, *right)
            return highest + count if level == ELVIS else highest
        case Unary(operand=operand):
            return 1 + _operand_height(operand, UNARY)
        case _:
            return 1 + max((_operand_height(child, 1) for child in children(node)), default=0)


def _operand_height(node: Node, lowest: int) -> int:
    """With the parenthesis, a level of its own, that an operand needs which binds less close."""
    return height(node) + (binding(node) < lowest)


#: Characters of an expression.
MAX_SIZE = 20_000
#: Operands of one `&&` or `||`; the library fails at more.
MAX_TERMS = 399
#: Calls of regular expressions in one expression: each is matched at every evaluation.
MAX_PATTERNS = 20

#: The two spellings of the resource as a scope.
_RESOURCE = frozenset({"other", "target"})
#: The two spellings of the side that states the expression.
_OWN = frozenset({"my", "self"})
#: What an expression cannot ask: the job, whose values are put in before (`own_attributes`), and the clock.
_FORBIDDEN = frozenset({*_OWN, "parent", "root", "toplevel", "currenttime", *_RESOURCE})


def resource_name(attribute: Attribute) -> str | None:
    """The parameter of the resource that `other.X`, `TARGET.X` or `X` is; None if it is none."""
    names = attribute.names
    if len(names) == 2 and names[0].lower() in _RESOURCE:
        names = names[1:]
    if len(names) != 1 or attribute.absolute or names[0].lower() in _FORBIDDEN:
        return None
    return names[0]


def own_name(attribute: Attribute) -> str | None:
    """The name that `MY.X` or `self.X` is on the side that states it; None if it is none."""
    names = attribute.names
    is_own = len(names) == 2 and names[0].lower() in _OWN and not attribute.absolute
    return names[1] if is_own else None


def is_other(attribute: Attribute) -> bool:
    """Whether it is `other.X` or `TARGET.X`."""
    names = attribute.names
    return len(names) == 2 and names[0].lower() in _RESOURCE and not attribute.absolute


def check(node: Node, source: SourceText) -> None:
    """Refuse what a user's expression must not contain.

    Raises:
        InvalidInput: With every such part, each with its place.
    """
    problems = [
        problem
        for part in parts_of(node)
        if (fault := _fault(part))
        for problem in source.fault(part.start, *fault).problems
    ]
    for part in parts_of(node):
        for where, message in faults(part):
            problems += source.fault(where.start, message).problems
    if problems:
        raise InvalidInput(problems)
    if len([part for part in parts_of(node) if is_regexp(part)]) > MAX_PATTERNS:
        raise source.fault(node.start, f"more than {MAX_PATTERNS} regular expressions; a|b is one")
    check_height(node, source)


def parts_of(node: Node) -> Iterator[Node]:
    """The node and everything below it, from left to right."""
    waiting = [node]
    while waiting:
        part = waiting.pop()
        yield part
        waiting.extend(reversed(children(part)))


def _fault(part: Node) -> tuple[str, str | None] | None:
    """What is wrong with one part by itself, and what was probably meant."""
    match part:
        case Attribute() if resource_name(part) is None:
            shown = "." * part.absolute + ".".join(part.names)
            return f"{shown[:60]} is no attribute of the resource, allowed is other.<Name>", None
        case Ad() | AttributeSelection():
            return "a record is not allowed here", None
        case Chain(level=level, rest=rest) if level in (AND, OR) and len(rest) >= MAX_TERMS:
            return f"{len(rest) + 1} terms in a row, allowed are {MAX_TERMS}; member() takes any number", None
        case Call():
            return call_fault(part)
        case _:
            return None
