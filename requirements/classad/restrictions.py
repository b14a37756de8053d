"""Restrictions on users' expressions: pure functions, attributes of the resource, limited sizes.

Regular expressions are matched by RE2, in time linear in the text, and the result is passed to the library:
the library's own matcher may take a quarter of a second for one hostile pattern. Functions are an allow-list.
Integer operations on constants that exceed 64 bits are refused, as the library silently wraps around. The
depth of trees is limited, as the library fails, or crashes the process, on deeper ones.
"""

from collections.abc import Iterator
from functools import lru_cache
from typing import Any

import classad2
import re2

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
    SourceText,
    Unary,
    attribute_key,
    binding,
    children,
)
from requirements.errors import InvalidInput, did_you_mean
from requirements.values import MAX_TEXT, fold, to_nfc

#: Functions with the arguments pattern, text or list of texts, options.
FUNCTIONS = frozenset({"regexp", "regexpmember"})
#: Characters of a pattern.
MAX_PATTERN = 200
#: Bytes of a compiled pattern; excludes `(.{1,99}){1,99}`.
MAX_MEMORY = 1 << 20
#: Options with the same meaning in both libraries.
_OPTIONS = frozenset("ims")

_UNDEFINED, _ERROR = classad2.Value.Undefined, classad2.Value.Error


def is_regexp(part: Node) -> bool:
    """Whether a part is a call of a regular expression function."""
    return isinstance(part, Call) and part.name.lower() in FUNCTIONS


def pattern_fault(call: Call) -> str | None:
    """Return the problem of a call's pattern or options; None if there is none."""
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
    """Return why RE2 does not accept a pattern; None if it does."""
    try:
        compiled(pattern, options)
    except re2.error as error:
        reason = error.args[0].decode(errors="replace") if error.args else "no pattern of RE2"
        return f"the pattern is refused: {reason}"
    return None


def _text(argument: object) -> str | None:
    """The text of a literal in NFC, as the values of resources are."""
    if isinstance(argument, Literal) and type(argument.value) is str:
        return to_nfc(argument.value)
    return None


def pattern_of(call: Call) -> Any:
    """Return the compiled pattern of a valid call."""
    texts = [_text(argument) or "" for argument in (call.arguments[0], *call.arguments[2:])]
    return compiled(texts[0], texts[1] if len(texts) > 1 else "")


@lru_cache(maxsize=64)  # of up to `MAX_MEMORY` each
def compiled(pattern: str, options: str) -> Any:
    """Compile a pattern; raises `re2.error`."""
    settings = re2.Options()
    settings.log_errors = False
    settings.max_mem = MAX_MEMORY
    settings.never_capture = True  # finding groups takes many times longer
    flags = f"(?{''.join(sorted(set(options.lower())))})" if options else ""
    return re2.compile(flags + pattern, options=settings)


def matches(pattern: Any, subject: object) -> object:
    """Evaluate `regexp(pattern, subject)`: a boolean, or the library's undefined or Error."""
    if isinstance(subject, str):
        # As bytes: of texts the library counts characters up to the match.
        return pattern.search(subject.encode()) is not None if len(subject) <= MAX_TEXT else _ERROR
    return _UNDEFINED if subject is _UNDEFINED else _ERROR


def matches_member(pattern: Any, subjects: object) -> object:
    """Evaluate `regexpMember(pattern, subjects)`: true if one of a list of texts matches."""
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


#: Functions that compare their arguments as versions.
VERSION_FUNCTIONS = frozenset(
    {"versioncmp", "versiongt", "versionge", "versionlt", "versionle", "versioneq", "version_in_range"}
)


def is_version(part: Node) -> bool:
    """Whether a part is a call of a version function."""
    return isinstance(part, Call) and part.name.lower() in VERSION_FUNCTIONS


def version_of(value: Any) -> Any:
    """Return a number as its shortest text, as someone writes a version; other values as they are."""
    return repr(value) if isinstance(value, float) else value


#: Names, with the minimum and maximum number of arguments; None: any number. No clock, no random, no `eval`,
#: no functions that build long texts (`join`, `split`) or read files (`userMap`).
_ALLOWED: dict[str, tuple[int, int | None]] = {
    **dict.fromkeys(
        ("isUndefined", "isError", "isString", "isInteger", "isReal", "isBoolean", "isList"), (1, 1)
    ),
    **dict.fromkeys(("int", "real", "string", "bool", "floor", "ceiling", "round"), (1, 1)),
    **dict.fromkeys(("size", "toLower", "toUpper", "sum", "avg", "min", "max"), (1, 1)),
    **dict.fromkeys(("member", "identicalMember", "pow", "quantize", "strcmp", "stricmp"), (2, 2)),
    **dict.fromkeys(("versioncmp", "versionGT", "versionGE", "versionLT", "versionLE", "versionEQ"), (2, 2)),
    **dict.fromkeys(("ifThenElse", "anyCompare", "allCompare", "version_in_range"), (3, 3)),
    **dict.fromkeys(
        ("stringListSize", "stringListSum", "stringListAvg", "stringListMin", "stringListMax"), (1, 2)
    ),
    **dict.fromkeys(("stringListMember", "stringListIMember", "stringListsIntersect"), (2, 3)),
    **dict.fromkeys(("stringListSubsetMatch", "stringListISubsetMatch"), (2, 3)),
    **dict.fromkeys(("regexp", "regexpMember"), (2, 3)),
    "substr": (2, 3),
    "strcat": (1, None),
}
_BY_LOWER = {name.lower(): bounds for name, bounds in _ALLOWED.items()}


def call_fault(call: Call) -> tuple[str, str | None] | None:
    """Return the problem of a call and a suggested function; None if there is no problem."""
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


#: Range of the library's integers.
_LEAST, _MOST = -(2**63), 2**63 - 1
_SHIFTS = frozenset({"<<", ">>", ">>>"})
_TO_INTEGER = frozenset({"int", "floor", "ceiling", "round"})
_EXACT = {"+": int.__add__, "-": int.__sub__, "*": int.__mul__}


def faults(part: Node) -> Iterator[tuple[Node, str]]:
    """Yield the constants and operations of one part that would overflow, each with a message."""
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
    """Yield the exact intermediate results, as long as all operands are integer literals."""
    total = _number(chain.first)
    for operator, operand in chain.rest:
        number = _number(operand)
        if operator not in _EXACT or not (isinstance(total, int) and isinstance(number, int)):
            return
        total = _EXACT[operator](total, number)
        yield total


def _text_fault(node: Node) -> Node:
    """Convert a text literal that is a number to that number."""
    if not isinstance(node, Literal) or not isinstance(node.value, str):
        return node
    try:
        return Literal(value=float(node.value), start=node.start, end=node.end)
    except ValueError:
        return node


def _number(node: Node) -> float | None:
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


#: Levels of an evaluation before the library fails: measured, and checked by a test. A sum of some
#: hundred thousand terms overruns its stack while it is parsed.
MAX_HEIGHT = 401
TOO_HIGH = "too many operations inside each other; parentheses around parts of it, or member(), help"


def height(node: Node) -> int:
    """Levels that the library descends to evaluate the tree: in a chain, one for each operand."""
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
    """Height of an operand, with one level for the parentheses it needs if it binds less tightly."""
    return height(node) + (binding(node) < lowest)


#: Characters of an expression.
MAX_SIZE = 20_000
#: Operands of one `&&` or `||`; the library fails with more.
MAX_TERMS = 399
#: Regular expression calls in one expression: each is matched at every evaluation.
MAX_PATTERNS = 20

#: Scopes of the resource.
_RESOURCE = frozenset({"other", "target"})
#: Scopes of the side that states the expression.
_OWN = frozenset({"my", "self"})
#: Not available: the job, whose values were substituted before (`OwnAttributes`), and the clock.
_FORBIDDEN = frozenset({*_OWN, "parent", "root", "toplevel", "currenttime", *_RESOURCE})


def resource_name(attribute: Attribute) -> str | None:
    """Return the parameter of the resource in `other.X`, `TARGET.X` or `X`; None: another attribute."""
    names = attribute.names
    if len(names) == 2 and names[0].lower() in _RESOURCE:
        names = names[1:]
    if len(names) != 1 or attribute.absolute or names[0].lower() in _FORBIDDEN:
        return None
    return names[0]


def resource_names(node: Node) -> dict[str, str]:
    """Return the parameters of the resource in an expression, in their first spelling, by `attribute_key`."""
    names: dict[str, str] = {}
    for part in parts_of(node):
        if isinstance(part, Attribute) and (name := resource_name(part)):
            names.setdefault(attribute_key(name), name)
    return names


def names_of_lists(node: Node) -> frozenset[str]:
    """Folded names of the resource's parameters that `member` functions read as lists."""
    return frozenset(
        fold(name)
        for part in parts_of(node)
        if isinstance(part, Call) and part.name.lower() in ("member", "identicalmember")
        for each in part.arguments[1:2]
        if isinstance(each, Attribute) and (name := resource_name(each))
    )


def own_name(attribute: Attribute) -> str | None:
    """Return the name in `MY.X` or `self.X`; None: another attribute."""
    names = attribute.names
    is_own = len(names) == 2 and names[0].lower() in _OWN and not attribute.absolute
    return names[1] if is_own else None


def is_other(attribute: Attribute) -> bool:
    """Whether an attribute is `other.X` or `TARGET.X`."""
    names = attribute.names
    return len(names) == 2 and names[0].lower() in _RESOURCE and not attribute.absolute


def check(node: Node, source: SourceText) -> None:
    """Refuse expressions that users may not evaluate, with every forbidden part and its position."""
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
    if height(node) > MAX_HEIGHT:
        raise source.fault(node.start, TOO_HIGH)


def parts_of(node: Node) -> Iterator[Node]:
    """Yield the node and all its descendants, from left to right."""
    waiting = [node]
    while waiting:
        part = waiting.pop()
        yield part
        waiting.extend(reversed(children(part)))


def _fault(part: Node) -> tuple[str, str | None] | None:
    match part:
        case Attribute() if resource_name(part) is None:
            shown = "." * part.absolute + ".".join(part.names)
            return f"{shown[:60]} is not an attribute of the resource, allowed is other.<Name>", None
        case Ad() | AttributeSelection():
            return "a record is not allowed here", None
        case Chain(level=level, rest=rest) if level in (AND, OR) and len(rest) >= MAX_TERMS:
            return f"{len(rest) + 1} terms in a row, allowed are {MAX_TERMS}; member() takes any number", None
        case Call():
            return call_fault(part)
        case _:
            return None
