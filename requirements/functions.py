"""The functions that an expression of a user may call: pure ones, by an allow-list."""

from requirements import regexps
from requirements.suggestion import did_you_mean
from requirements.syntax import Call

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


def fault(call: Call) -> tuple[str, str | None] | None:
    """What is wrong with a call, and which function was probably meant; None if nothing is wrong."""
    bounds = _BY_LOWER.get(call.name.lower())
    if bounds is None:
        return f"the function {call.name[:60]} is not allowed", did_you_mean(call.name, _ALLOWED)
    least, most = bounds
    given = len(call.arguments)
    if given < least or (most is not None and given > most):
        return f"{call.name} has {given} arguments, allowed are {_range(least, most)}", None
    if regexps.is_regexp(call) and (wrong := regexps.fault(call)):
        return f"{call.name}: {wrong}", None
    return None


def _range(least: int, most: int | None) -> str:
    if most is None:
        return f"{least} or more"
    return f"{least}" if least == most else f"{least} to {most}"
