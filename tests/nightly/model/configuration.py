"""The resource tree of the model: effective parameters, who may use a queue, which requirements it fulfils.

Everything here follows from the specification's part 1 (requirements, SubmitPools, queues) and part 4
(ClassAds, node attributes); each function names its paragraph. The tree is the plain JSON that the
service exchanges.
"""

import itertools
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import classad2

Tree = dict[str, Any]
Parameters = dict[str, Any]  #: by the name in lower case

#: Parts of a node of the tree that are no parameters.
_SECTIONS = {
    *("ces", "queues", "vos", "throttle", "runninglimit", "matchingdelay"),
    *("nodeattributes", "forwarding"),
}
#: §1 "`Tag` and `RequiredTag` are sets and unite over the levels instead".
_UNITED = {"tag", "requiredtag"}
#: What decides on use, not on requirements.
_ACCESS = {"vo", "enabled"}


@dataclass(frozen=True)
class NodeValues:
    """§4 "Node attributes": the values that the nodes of a queue may have; None: any value, or none."""

    values: tuple[Any, ...] | None


def queues(tree: Tree) -> Iterator[str]:
    """All addresses `Site/CE/Queue`."""
    for site, its in tree["Resources"]["Sites"].items():
        for ce, one in its.get("CEs", {}).items():
            for queue in one.get("Queues", {}):
                yield f"{site}/{ce}/{queue}"


def levels(tree: Tree, queue: str) -> list[Tree]:
    """The nodes of Site, CE and Queue, in this order."""
    site, ce, name = queue.split("/")
    at_site = tree["Resources"]["Sites"][site]
    at_ce = at_site["CEs"][ce]
    return [at_site, at_ce, at_ce["Queues"][name]]


def sections(tree: Tree, queue: str, vo: str) -> Iterator[Tree]:
    """§1 "Resource side": deeper overrides shallower; at one level `VOs/<vo>` overrides the plain section."""
    for node in levels(tree, queue):
        own = node.get("VOs", {}).get(vo, {})
        overridden = {name.lower() for name in own} - _SECTIONS  # by a null, too
        yield {name: value for name, value in node.items() if name.lower() not in overridden}
        yield own


def effective(tree: Tree, queue: str, vo: str) -> Parameters:
    """§1 "Resource side": every parameter of Site, CE and Queue; null removes what is inherited; tags unite.

    §4 "Node attributes" inherit by their names, as parameters do.
    """
    values: Parameters = {}
    for section in sections(tree, queue, vo):
        for name, value in section.items():
            key = name.lower()
            if key in _UNITED and value is not None:
                values[key] = [
                    *values.get(key, []),
                    *(tag for tag in as_list(value) if tag not in values.get(key, [])),
                ]
            elif key not in _SECTIONS | _ACCESS:
                _override(values, key, value, of_nodes=False)
        for name, value in (section.get("NodeAttributes") or {}).items():
            which = value and NodeValues(None if value == "unknown" else tuple(value))
            _override(values, name.lower(), which, of_nodes=True)
        _expire(values, section)
    return values


def _override(values: Parameters, key: str, value: Any, *, of_nodes: bool) -> None:
    """A null takes away what it is the null of: a parameter, or an attribute of nodes."""
    if value is not None:
        values[key] = value
    elif isinstance(values.get(key), NodeValues) is of_nodes:
        values.pop(key, None)


def _expire(values: Parameters, section: Tree) -> None:
    """§4: after `update_time + expiry_time` dynamic values are undefined; ours expired long ago or never."""
    if section.get("expiry_time") is not None and section["update_time"] + section["expiry_time"] < 10**9:
        values.pop("freecpus", None)


def usable(tree: Tree, queue: str, vo: str) -> bool:
    """§1 "Resource side": `Enabled: false` at any level; the nearest `VO` list, compared without case."""
    admitted = None
    for section in sections(tree, queue, vo):
        if section.get("Enabled") is False:
            return False
        admitted = section.get("VO", admitted)
    return admitted is None or vo in (name.lower() for name in admitted)


def option(tree: Tree, vo: str, section: str, name: str, default: Any = None) -> Any:
    """§2 "Who is who": the VO's own option, else that of `Defaults`."""
    for scope in (vo, "Defaults"):
        found = tree.get("Operations", {}).get(scope, {}).get(section, {})
        if found.get(name) is not None:
            return found[name]
    return default


def declaration(tree: Tree, vo: str, name: str) -> Mapping[str, Any]:
    """§1 "Rules for a record": the declaration of a name, option by option."""
    merged: dict[str, Any] = {}
    for scope in ("Defaults", vo):
        declared = tree.get("Operations", {}).get(scope, {}).get("JobDescription", {})
        for each, options in declared.items():
            if each.lower() == name.lower() and isinstance(options, Mapping):
                merged |= options
    return merged


def as_list(value: Any) -> list[Any]:
    """§1 "a scalar is a list of one"."""
    return list(value) if isinstance(value, Sequence) and not isinstance(value, str) else [value]


# ---------------------------------------------------------------------------- requirements as a record


def canonical(value: Any) -> Any:
    """§1 "Identity": texts without case, lists de-duplicated and sorted, a list of one its value, typed."""
    if isinstance(value, list):
        parts = frozenset(canonical(each) for each in value)
        return next(iter(parts)) if len(parts) == 1 else parts
    if isinstance(value, str):
        return ("text", value.casefold())
    return ("boolean", value) if isinstance(value, bool) else ("number", float(value))


def _number(value: Any, *, declared: bool) -> float | None:
    """§1: "a number written as text counts as a number only where the declaration says so"."""
    if isinstance(value, bool):
        return None
    if isinstance(value, int | float):
        return float(value)
    if declared and isinstance(value, str) and re.fullmatch(r"-?\d+(\.\d+)?", value):
        return float(value)
    return None


def fulfils(name: str, wanted: Any, values: Parameters, declared: Mapping[str, Any], *, surely: bool) -> bool:
    """§1, the table: one requirement of a record at a queue."""
    has = values.get(declared.get("resource", name).lower())
    if has is None:
        return False  # any | parameter absent (or null) | no
    if isinstance(has, NodeValues):  # declared as node attribute: if some value would do
        possible = [None] if has.values is None else has.values
        does = [each is not None and _compare(wanted, each, declared) for each in possible]
        return all(does) if surely else has.values is None or any(does)
    return _compare(wanted, has, declared)


def _compare(wanted: Any, has: Any, declared: Mapping[str, Any]) -> bool:
    number = declared.get("type") == "number"
    wishes = as_list(wanted)
    wishes = [wish for n, wish in enumerate(wishes) if canonical(wish) not in map(canonical, wishes[:n])]
    if len(wishes) > 1 or declared.get("type") == "list":
        common = all if declared.get("match") == "all" else any
        return common(_among(wish, as_list(has), number=number) for wish in wishes)
    need = _number(wishes[0], declared=number)
    if need is not None and not isinstance(has, list):
        capacity = _number(has, declared=number)
        return capacity is not None and capacity >= need
    return _among(wishes[0], as_list(has), number=number)


def _among(wanted: Any, values: list[Any], *, number: bool) -> bool:
    """Whether a value is one of the queue's: numbers by value, texts without case, booleans as such."""
    if number:
        wanted, *values = (_number(each, declared=True) for each in (wanted, *values))
        return wanted is not None and wanted in values
    return canonical(wanted) in (canonical(each) for each in values)


# ---------------------------------------------------------------------------- requirements as an expression

#: An expression as data: ["==", name, literal], ["and", …], ["or", …], ["not", e], ["if", c, a, b] …
Expression = list[Any]


def literal(value: Any) -> str:
    """A value as ClassAds write it."""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, str):
        return f'"{value}"'
    return "{" + ", ".join(map(literal, value)) + "}" if isinstance(value, list) else repr(value)


def text_of(expression: Expression, style: int = 0) -> str:
    """The expression as text; texts of different styles mean the same (§4 "Normal form")."""
    kind, *parts = expression
    scope = ("other.", "TARGET.", "", "Other.")[style % 4]
    if kind in {"and", "or"}:
        sign = " && " if kind == "and" else " || "
        texts = [f"({text_of(part, style)})" for part in parts]
        return (sign if style % 3 else sign.strip()).join(reversed(texts) if style % 2 else texts)
    if kind == "not":
        return f"!({text_of(parts[0], style)})"
    if kind == "if":
        condition, yes, no = (f"({text_of(part, style)})" for part in parts)
        return f"{condition} ? {yes} : {no}" if style % 2 else f"ifThenElse({condition}, {yes}, {no})"
    name = scope + (parts[0].upper() if style % 5 == 1 else parts[0])
    if kind == "member":
        return f"member({literal(parts[1])}, {name})"
    if kind == "undefined":
        return f"isUndefined({name})"
    if style % 7 in {2, 3} and kind in _MIRRORED:
        return f"{literal(parts[1])} {_MIRRORED[kind]} {name}"
    return f"{name} {kind} {literal(parts[1])}"


_MIRRORED = {"<": ">", ">": "<", "<=": ">=", ">=": "<=", "==": "==", "!=": "!="}


def names_of(expression: Expression) -> set[str]:
    """The parameters that an expression reads, in lower case."""
    kind, *parts = expression
    if kind in {"and", "or", "not", "if"}:
        return set().union(*map(names_of, parts))
    return {parts[0].lower()}


def constants_of(expression: Expression, name: str) -> list[Any]:
    """What a parameter is compared with."""
    kind, *parts = expression
    if kind in {"and", "or", "not", "if"}:
        return [value for part in parts for value in constants_of(part, name)]
    return parts[1:] if parts[0].lower() == name else []


def parameters_of(requirements: Any, tree: Tree, vo: str) -> dict[str, list[Any]]:
    """The parameters that requirements read, in lower case, and the constants that each is compared with."""
    if isinstance(requirements, list):
        return {name: constants_of(requirements, name) for name in sorted(names_of(requirements))}
    found: dict[str, list[Any]] = {}
    for name, wanted in (requirements or {}).items():
        parameter = declaration(tree, vo, name).get("resource", name).lower()
        found[parameter] = [*found.get(parameter, []), *as_list(wanted)]
    return found


def nodes_of(requirements: Any, values: Parameters, tree: Tree, vo: str) -> list[Parameters]:
    """Nodes that a queue may have, as far as requirements tell them apart; None: without the attribute."""
    choices = {
        name: _possible(values[name].values, constants)
        for name, constants in parameters_of(requirements, tree, vo).items()
        if isinstance(values.get(name), NodeValues)
    }
    return [dict(zip(choices, each, strict=True)) for each in itertools.product(*choices.values())]


def eligible_at(node: Parameters, requirements: Any, values: Parameters, tree: Tree, vo: str) -> bool:
    """Whether a node fulfils requirements, with the parameters of its queue."""
    whole = {name: value for name, value in {**values, **node}.items() if value is not None}
    return eligible(requirements, whole, tree, vo, surely=True)


def is_true(expression: Expression, values: Parameters, *, surely: bool) -> bool:
    """§4: HTCondor's own library decides; undefined and error are not true.

    Of node attributes (§4): true for some combination of the values that nodes may have, or surely for each.
    """
    undecided = [name for name in sorted(names_of(expression)) if isinstance(values.get(name), NodeValues)]
    fixed = {name: value for name, value in values.items() if not isinstance(value, NodeValues)}
    choices = [_possible(values[name].values, constants_of(expression, name)) for name in undecided]
    outcomes = (
        _evaluate(
            expression, {**fixed, **{n: v for n, v in zip(undecided, each, strict=True) if v is not None}}
        )
        for each in itertools.product(*choices)
    )
    return all(outcomes) if surely else any(outcomes)


def _possible(declared: tuple[Any, ...] | None, constants: list[Any]) -> list[Any]:
    """The declared values; of an unknown attribute what its comparisons can tell apart, and none."""
    if declared is not None:
        return list(declared)
    numbers = [c for c in constants if isinstance(c, int | float) and not isinstance(c, bool)]
    return [
        None,
        "another",
        [],
        *constants,
        *(n + d for n in numbers for d in (-0.5, 0.5)),
        *([c] for c in constants),
    ]


def _evaluate(expression: Expression, values: Parameters) -> bool:
    ad = classad2.ClassAd(values)
    ad["RequirementsOfTheJob"] = classad2.ExprTree(re.sub(r"(?i)\b(other|target)\.", "", text_of(expression)))
    return ad.eval("RequirementsOfTheJob") is True


def eligible(requirements: Any, values: Parameters, tree: Tree, vo: str, *, surely: bool = False) -> bool:
    """§1 "Rules": all named parameters hold, or the expression is true; nothing is no condition.

    Args:
        requirements: Of the job.
        values: Of the queue, or of a node of it.
        tree: The configuration, for the declarations.
        vo: Of the job.
        surely: Whatever values the node attributes have that are left; else if some values would do.
    """
    if requirements is None:
        return True
    if isinstance(requirements, list):
        return is_true(requirements, values, surely=surely)
    return all(
        fulfils(name, wanted, values, declaration(tree, vo, name), surely=surely)
        for name, wanted in requirements.items()
    )


def with_facts(values: Parameters, facts: Mapping[str, Any]) -> Parameters:
    """§4 "Node attributes" (b): what the pilot measured decides, of names that the queue declares.

    What it did not measure is unknown, not absent: pilots without the facts get other jobs.
    """
    known = {name.lower(): value for name, value in facts.items()}
    return {n: known[n] if isinstance(v, NodeValues) and n in known else v for n, v in values.items()}


def identity(requirements: Any, vo: str) -> Any:
    """§1 "Identity": what the id of a pool depends on; the owner is not part of it."""
    if isinstance(requirements, list):
        return (vo, _normal(requirements))
    return (vo, frozenset((name.lower(), canonical(value)) for name, value in requirements.items()))


def _normal(expression: Expression) -> Any:
    """§4 "Normal form", as far as the styles of one expression need it."""
    kind, *parts = expression
    if kind in {"and", "or"}:
        flat = frozenset(_normal(part) for part in parts)
        return next(iter(flat)) if len(flat) == 1 else (kind, flat)
    if kind in {"not", "if"}:
        return (kind, *map(_normal, parts))
    value = repr(parts[1:])
    return (kind, parts[0].lower(), value)
