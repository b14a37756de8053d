"""GLUE 1 names derived from our parameters, and the reverse; and `CPUTime` where it is not stated.

One table serves both directions: the attributes of a queue's ad beside its parameters, and the parameters of
an ad in GLUE names only. Values of nested ads have names, too. A value that a queue sets itself under a name
is never replaced.

Source: GLUE Schema 1.3; gLite's CE ads.
"""

import math
import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from enum import StrEnum
from functools import lru_cache
from typing import NamedTuple

from cs_config.tree import cpu_time
from cs_config.tree.address import QueueAddress
from cs_config.tree.inheritance import as_tuple
from requirements.classad.classad_files import value_of
from requirements.classad.parser import read_expression
from requirements.classad.syntax_tree import Ad, ListOf, Literal, SourceText, render
from requirements.errors import InvalidInput
from requirements.values import MAX_INTEGER, Scalar, Value, fold

_RULE = "VO:"
_DENIAL = "DENY"
RULES = "GlueCEAccessControlBaseRule"
_OPEN, _CLOSED = "Production", "Closed"
#: What information systems publish for a number that is not known, or has no limit: all 4s, all 9s, and
#: the largest integers of 32 bits; those of 64 bits are above `MAX_INTEGER`.
_PLACEHOLDER = re.compile(r"4{6,}|9{6,}|2147483647|4294967295")
_DIGITS = re.compile(r"[0-9]{1,30}")
#: How the text of an ad begins, or of a list of ads.
_NESTED = ("[", "{ [", "{[")


class GlueForm(StrEnum):
    """Format of a value in GLUE."""

    SAME = "as it is"
    ONE = "as it is, if it is one value"
    LIST = "as a list"
    MINUTES = "seconds as whole minutes, rounded down"
    RULES = "a list of VO:<vo>"
    STATUS = "true as Production, false as Closed"


class GlueName(NamedTuple):
    """A GLUE 1 name and the parameter that it is derived from."""

    name: str
    parameter: str
    form: GlueForm
    unit: str = ""  #: of the GLUE value


#: Of several entries with one name, the first whose parameter the queue has is used; the reverse uses the
#: first.
TABLE = (
    GlueName("GlueCEPolicyMaxCPUTime", "CPUTime", GlueForm.MINUTES, "minutes"),
    GlueName("GlueCEPolicyMaxCPUTime", "maxCPUTime", GlueForm.SAME, "minutes"),
    GlueName("GlueCEPolicyMaxWallClockTime", "maxWallClockTime", GlueForm.MINUTES, "minutes"),
    GlueName("GlueHostBenchmarkSI00", "SI00", GlueForm.SAME, "SPECint2000"),
    GlueName("GlueHostMainMemoryRAMSize", "MaxRAM", GlueForm.SAME, "MB"),
    GlueName("GlueHostArchitectureSMPSize", "NumberOfProcessors", GlueForm.SAME, "processors"),
    GlueName("GlueHostArchitecturePlatformType", "Architecture", GlueForm.SAME),
    GlueName("GlueHostProcessorModel", "CPUModel", GlueForm.ONE),
    GlueName("GlueHostOperatingSystemName", "OS", GlueForm.ONE),
    GlueName("GlueHostApplicationSoftwareRunTimeEnvironment", "SoftwareTag", GlueForm.LIST),
    GlueName("GlueHostApplicationSoftwareRunTimeEnvironment", "Tag", GlueForm.LIST),
    GlueName("GlueCESEBindGroupSEUniqueID", "CloseSE", GlueForm.LIST),
    GlueName("GlueCESEBindGroupSEUniqueID", "SE", GlueForm.LIST),
    GlueName("GlueCEAccessControlBaseRule", "VO", GlueForm.RULES),
    GlueName("GlueCEStateStatus", "Enabled", GlueForm.STATUS),
    GlueName("GlueCEName", "CEQueueName", GlueForm.SAME),
    GlueName("GlueCEName", "BatchQueue", GlueForm.SAME),
    GlueName("QueueName", "CEQueueName", GlueForm.SAME),
    GlueName("QueueName", "BatchQueue", GlueForm.SAME),
)

#: Folded names that follow from parameters, with the folded parameters that may decide each.
SOURCES: Mapping[str, frozenset[str]] = {
    name: frozenset(fold(entry.parameter) for entry in TABLE if fold(entry.name) == name)
    for name in sorted({fold(entry.name) for entry in TABLE})
} | {"cputime": frozenset(cpu_time.SOURCES)}

#: Folded GLUE names of numbers that are above 0, each with the parameter that follows from it.
_NUMBERS = {fold(entry.name): entry.parameter for entry in reversed(TABLE) if entry.unit}
#: How folded GLUE names begin.
_GLUE = "glue"

#: Names derived from the address alone, with their format: two queues never share a value.
OF_ADDRESS: Mapping[str, str] = {
    "GlueCEUniqueID": "CE/Queue",
    "GlueCEInfoHostName": "the host of the CE, without port",
    "GlueCEHostingCluster": "the host of the CE, without port",
    "GlueCEName": "the name of the queue, unless CEQueueName or BatchQueue is set",
    "QueueName": "the name of the queue, unless CEQueueName or BatchQueue is set",
}


def build_ad(values: Mapping[str, Value], address: QueueAddress | None = None) -> Mapping[str, Value]:
    """The ad of a queue: its parameters, the names derived from them and from an address, nested values.

    Derived are the GLUE names, and `CPUTime` where only other parameters limit it.
    Parameters that are GLUE names themselves stay as they are, but for their numbers.
    """
    found = read_numbers(values)
    known = {fold(name): value for name, value in found.items()}
    for name, value in (*_derived(known), *_address_names(address), *nested_values(values)):
        if fold(name) not in known:
            known[fold(name)] = found[name] = value
    return found


def parameters_from_glue(of_glue: Mapping[str, Value]) -> Mapping[str, Value]:
    """Our parameters derived from an ad in GLUE names, the reverse of `build_ad`.

    Only access rules of whole VOs are imported as VOs; our tree cannot represent other rules.
    """
    known = {fold(name): value for name, value in of_glue.items()}
    found: dict[str, Value] = {}
    seen: set[str] = set()
    for entry in TABLE:
        value = known.get(fold(entry.name))
        if value is None or entry.name in seen:
            continue
        seen.add(entry.name)
        if (read := _from_glue(entry, value)) is not None:
            found.setdefault(entry.parameter, read)
    return found


def unstated_numbers(of_glue: Mapping[str, Value]) -> Mapping[str, str]:
    """The names of numbers in an ad from which none of our parameters follows, by that parameter."""
    return {
        name: _NUMBERS[fold(name)]
        for name, value in of_glue.items()
        if fold(name) in _NUMBERS and read_number(value) is None
    }


def is_placeholder(number: int) -> bool:
    """Whether a number of an information system means that there is none."""
    return number > MAX_INTEGER or _PLACEHOLDER.fullmatch(str(number)) is not None


def read_number(value: Value) -> int | float | None:
    """A number above 0 of an information system, also as its text; None if it stands for none."""
    number = int(value) if isinstance(value, str) and _DIGITS.fullmatch(value.strip()) else _number(value)
    is_stated = number is not None and number > 0 and not is_placeholder(math.floor(number))
    return number if is_stated else None


def read_numbers(values: Mapping[str, Value]) -> dict[str, Value]:
    """Parameters of a queue with the numbers of those that are GLUE names, also of texts.

    A placeholder is absent, so that requirements see it as undefined.
    """
    read: dict[str, Value | None] = dict(values)
    for name, value in values.items():
        if name[:4].lower() != _GLUE or isinstance(value, tuple):  # `fold` of each name would take longer
            continue
        if fold(name) in _NUMBERS:
            read[name] = read_number(value)
        elif (number := _number(value)) is not None and is_placeholder(math.floor(number)):
            read[name] = None
    return {name: value for name, value in read.items() if value is not None}


def following(folded: Collection[str]) -> frozenset[str]:
    """Folded names that may be derived from parameters of these folded names, or from any address."""
    derived = (name for name, sources in SOURCES.items() if not sources.isdisjoint(folded))
    return frozenset((*derived, *map(fold, OF_ADDRESS)))


def _derived(known: Mapping[str, Value]) -> Iterator[tuple[str, Value]]:
    for entry in TABLE:
        value = known.get(fold(entry.parameter))
        if value is not None and (made := _to_glue(entry.form, value)) is not None:
            yield entry.name, made
    if (seconds := None if "cputime" in known else cpu_time.compute(known)) is not None:
        yield "CPUTime", seconds


def nested_values(values: Mapping[str, Value]) -> Iterator[tuple[str, Value]]:
    """The values of ads that parameters hold as their text, each as the list `Parameter_name`.

    A parameter of that name, in any case of letters, stays as it is.
    """
    nested = [
        (name, value)
        for name, value in values.items()
        if isinstance(value, str) and value.startswith(_NESTED)
    ]
    known = set(map(fold, values)) if nested else set()
    for name, text in nested:
        for inner, items in _read_nested(text).items():
            if fold(f"{name}_{inner}") not in known:
                yield f"{name}_{inner}", items


@lru_cache(maxsize=1000)
def _read_nested(text: str) -> Mapping[str, tuple[Scalar, ...]]:
    """The values of an ad, or of the ads in a list, by name; empty if the text is neither."""
    found: dict[str, tuple[Scalar, ...]] = {}
    source = SourceText(text=text, path="")
    try:
        node = read_expression(source)
    except InvalidInput:
        return found
    for ad in node.items if isinstance(node, ListOf) else (node,):
        for name, value in ad.entries if isinstance(ad, Ad) else ():
            stated = value_of(value, source)
            # Names of hosts often stand without quotation marks.
            stated = stated if isinstance(stated, Scalar) or isinstance(value, Literal) else render(value)
            if isinstance(stated, Scalar):
                found[name] = (*found.get(name, ()), stated)
    return found


def _address_names(address: QueueAddress | None) -> Iterator[tuple[str, Value]]:
    if address is None:
        return
    host = address.ce.partition(":")[0]
    yield "GlueCEUniqueID", f"{address.ce}/{address.queue}"
    yield from (("GlueCEInfoHostName", host), ("GlueCEHostingCluster", host))
    yield from (("GlueCEName", address.queue), ("QueueName", address.queue))


def _to_glue(form: GlueForm, value: Value) -> Value | None:
    match form:
        case GlueForm.MINUTES:
            return None if (seconds := _number(value)) is None else math.floor(seconds / 60)
        case GlueForm.RULES:
            return tuple(f"{_RULE}{vo}" for vo in as_tuple(value))
        case GlueForm.STATUS:
            return None if not isinstance(value, bool) else _OPEN if value else _CLOSED
        case GlueForm.ONE:
            return None if len(as_tuple(value)) != 1 else as_tuple(value)[0]
        case GlueForm.LIST:
            return as_tuple(value)
        case GlueForm.SAME:
            return value


def _from_glue(entry: GlueName, value: Value) -> Value | None:
    if entry.unit:
        number = read_number(value)
        return number * 60 if number is not None and entry.form is GlueForm.MINUTES else number
    match entry.form:
        case GlueForm.RULES:
            others = other_rules(value)
            vos = (rule[len(_RULE) :] for rule in map(str, as_tuple(value)) if rule not in others)
            return () if has_denial(others) else tuple(vos)
        case GlueForm.STATUS:
            return None if fold(str(value)) == fold(_OPEN) else False
        case GlueForm.LIST:
            return as_tuple(value)
        case GlueForm.ONE | GlueForm.SAME | GlueForm.MINUTES:
            return value


def other_rules(value: Value) -> tuple[str, ...]:
    """Access rules that are not of a whole VO: of persons, groups or roles, and denials."""
    return tuple(rule for rule in map(str, as_tuple(value)) if not fold(rule).startswith(fold(_RULE)))


def is_glue(name: str) -> bool:
    """Whether a name is one of GLUE 1."""
    return fold(name).startswith(_GLUE)


def has_denial(rules: Iterable[str]) -> bool:
    """Whether one of these access rules keeps someone out, which closes the queue to all VOs."""
    return any(fold(rule.strip()).startswith(fold(_DENIAL)) for rule in rules)


def explain_others(others: Sequence[str]) -> str:
    """What access rules that are not of a whole VO lead to."""
    message = f"rules that are not of a whole VO admit no one: {', '.join(others):.200}"
    return f"{message}; a denial closes it to all VOs, VO: []" if has_denial(others) else message


def _number(value: Value) -> int | float | None:
    return value if isinstance(value, int | float) and not isinstance(value, bool) else None
