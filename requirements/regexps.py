"""Regular expressions in requirements, matched by RE2.

The ClassAd library's own matcher may take a quarter of a second for one hostile pattern, so it never sees
one: each `regexp(…)` is computed here, in time linear in the text, and handed to the library as its result.
"""

from functools import lru_cache
from typing import Any

import classad2
import re2

from requirements.syntax import Call, Literal, Node

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


def fault(call: Call) -> str | None:
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
