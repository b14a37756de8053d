"""DIRAC's dialect of JDL: values need no quotes, brackets and the last semicolon may be missing.

What JobAgents get is written so that DIRAC's own parser splits it correctly: it reads neither quotes nor
nested values. Keywords that only DIRAC has are kept, and written back.

Source: DIRAC 9.1, `ClassAdLight.py`, `JDL.py`.
"""

import re
from collections.abc import Iterator, Mapping
from typing import Final

from cs_config.options import bounds
from requirements.errors import InvalidJob, Problem
from requirements.values import MAX_INTEGER, as_number
from taskqueue.jobs.jobs import Job

#: Keywords that DIRAC reads as lists.
_LISTS: Final = frozenset(
    {
        *("BannedSites", "ExecutionEnvironment", "InputData", "OutputData", "OutputSandbox"),
        *("Site", "Tags", "OutputSE", "InputDataPolicy"),
    }
)
_TEXTS: Final = frozenset(
    {
        *("Arguments", "Executable", "GridCE", "JobConfigArgs", "JobGroup", "JobName", "JobType", "LogLevel"),
        *("OutputPath", "Platform", "StdOutput", "StdError"),
    }
)
_NUMBERS: Final = frozenset(
    {
        *("CPUTime", "Priority", "NumberOfProcessors", "MinNumberOfProcessors", "MaxNumberOfProcessors"),
        *("MinRAM", "MaxRAM"),
    }
)
#: Set from the certificate, whatever the text has.
_OVERWRITTEN: Final = frozenset(
    {"Owner", "OwnerDN", "OwnerGroup", "OwnerName", "VirtualOrganization", "VO", "DIRACSetup", "JobID"}
)
#: Keyword of a description for those that only DIRAC has.
FOREIGN: Final = "ForeignKeywords"
_ANY: Final = "any"
#: DIRAC's job type of jobs that have none.
DEFAULT_TYPE: Final = "User"
#: Keywords that have one text or number in DIRAC, and a list here.
_SINGLE: Final = frozenset({"GridCE", "InputDataPolicy", "OutputPath", "OutputSE", "Platform"})
#: A parameter of a parametric job: `Parameters`, `ParameterStart.A`.
_PARAMETER: Final = re.compile(r"(Parameters|ParameterStart|ParameterStep|ParameterFactor)(\.\w+)?")
_COUNT: Final = "Parameters"
#: What values of parameters start with, what is added to each, and with what it is multiplied before, as in
#: DIRAC; here they are counted from 0.
_PROGRESSION: Final = {"ParameterStart": 1, "ParameterStep": 0, "ParameterFactor": 1}
_INTEGER: Final = re.compile(r"[+-]?\d{1,18}")
#: Characters that DIRAC's parser takes for the end of a value, or for a nested one.
_UNREADABLE: Final = frozenset(';["\n{}')
#: The first character of an attribute.
_BEGIN: Final = re.compile(r"[^ \t\r\n;]")
# These need time and memory in proportion to the text: no repetition gives back what it took.
_NAME: Final = re.compile(r"([^=;]*+)=")
#: A text in quotes, and one in braces whose quotes are closed, up to the end of its value.
_QUOTED: Final = re.compile(r'\s*+"((?:[^"\\]++|\\.)*+)"\s*+(?:;|\Z)', re.DOTALL)
_BRACED: Final = re.compile(r'\s*+(\{(?:[^{}"]++|"[^"]*+"|\{[^{}]*+\})*+\})\s*+(?:;|\Z)', re.DOTALL)
_BARE: Final = re.compile(r"([^;]*+)(?:;|\Z)")
_ITEM: Final = re.compile(r'\s*+(?:"([^"]*+)"|(\{[^{}]*+\})|([^,"]*+))\s*+(?:,|\Z)')

Value = str | list[str]


def read_jdl(text: str) -> dict[str, object]:
    """The description in a text of a client of DIRAC, with our keywords; `InvalidJob` says what is wrong."""
    return _to_ours(dict(_split(text)))


def _split(text: str) -> Iterator[tuple[str, Value]]:
    """The attributes of a text; the last one of a name wins, as in DIRAC."""
    _require_most(len(text), bounds.DESCRIBED, "characters")
    body = text.strip()
    if body.startswith("["):
        body = body[1:]
    if body.endswith("]"):
        body = body[:-1]
    at = keywords = characters = 0
    while (begin := _BEGIN.search(body, at)) is not None:
        at = begin.start()
        name = _NAME.match(body, at)
        if name is None or not name[1].strip():
            line = body.count("\n", 0, at) + 1
            message = f"line {line}: {body[at : at + 40]!r} is no `Name = value;`"
            raise InvalidJob([Problem(path="description", message=message)])
        matched = next(filter(None, (each.match(body, name.end()) for each in (_QUOTED, _BRACED, _BARE))))
        is_parameter = _PARAMETER.fullmatch(name[1].strip()) is not None
        keywords, characters = keywords + 1, characters + (0 if is_parameter else matched.end() - at)
        _require_most(keywords, bounds.DIRAC_KEYWORDS, "keywords")
        _require_most(characters, bounds.FILLED, "characters beside the values of parameters")
        yield name[1].strip(), _read_value(matched)
        at = matched.end()


def _require_most(seen: int, most: int, what: str) -> None:
    if seen > most:
        message = f"has {seen:,} {what}, allowed are {most:,}"
        raise InvalidJob([Problem(path="description", message=message)])


def _read_value(matched: re.Match[str]) -> Value:
    if matched.re is _QUOTED:
        return re.sub(r'\\(["\\])', r"\1", matched[1]).replace("\n", "")
    if matched.re is _BRACED:
        return _read_items(matched[1][1:-1])
    return matched[1].replace("\n", "").replace('"', "").strip()


def _read_items(text: str) -> list[str]:
    found: list[str] = []
    at = 0
    while at < len(text):
        item = _ITEM.match(text, at)
        if item is None or item.end() == at:  # a quote in the middle of a word
            parts = text[at:].split(",", bounds.DIRAC_ITEMS)
            found += [part.replace('"', "").strip() for part in parts]
            break
        found.append(next((each for each in item.groups() if each is not None), "").strip())
        if len(found) > bounds.DIRAC_ITEMS:
            break
        at = item.end()
    _require_most(len(found), bounds.DIRAC_ITEMS, "items in a list")
    return [item for item in found if item]


def _to_ours(read: Mapping[str, Value]) -> dict[str, object]:
    """Keywords that both have in our form, all others as foreign ones."""
    ours: dict[str, object] = dict(_count_parameters(read))
    foreign: dict[str, str] = {}
    for name, value in read.items():
        if name in _OVERWRITTEN or _PARAMETER.fullmatch(name):
            continue
        if name in _LISTS:
            if items := _list_items(value, name):
                ours[name] = items
        elif name in _TEXTS | _NUMBERS and (isinstance(value, str) or len(value) == 1):
            text = value if isinstance(value, str) else value[0]
            if text and not (name in ("Platform", "GridCE") and text.lower() == _ANY):
                ours[name] = text
        else:
            foreign[name] = _format_foreign(value)
    ours.setdefault("JobType", DEFAULT_TYPE)
    if foreign:
        ours[FOREIGN] = foreign
    return ours


def _count_parameters(read: Mapping[str, Value]) -> Iterator[tuple[str, object]]:
    """The keywords of parameters, those that are counted as lists of their values."""
    stated = {name: value for name, value in read.items() if _PARAMETER.fullmatch(name)}
    count = stated.get(_COUNT)
    number = int(count) if isinstance(count, str) and _INTEGER.fullmatch(count) else 0
    names = {name.partition(".")[2] for name in stated} if number > 0 else set()
    counted = {name for name in names if not isinstance(stated.get(_join(_COUNT, name)), list)}
    if number > bounds.SUBMITTED_JOBS:
        counted = set()  # refused as too many jobs
    _require_most(number * len(counted), bounds.DIRAC_ITEMS, "values of parameters")
    for name in sorted(counted):
        yield _join(_COUNT, name), _list_values(stated, name, number)
    for name, value in stated.items():
        if name.partition(".")[2] not in counted:
            yield name, as_number(value) if isinstance(value, str) else value


def _join(keyword: str, name: str) -> str:
    return f"{keyword}.{name}" if name else keyword


def _list_values(stated: Mapping[str, Value], name: str, number: int) -> list[str]:
    """The values of one parameter in DIRAC's form, in which a float is no integer."""
    start, step, factor = (
        _read_number(_join(keyword, name), stated.get(_join(keyword, name), str(default)))
        for keyword, default in _PROGRESSION.items()
    )
    value = start * type(factor)(1) + type(step)(0)
    values = []
    for _ in range(number):
        if abs(value) > MAX_INTEGER:
            raise InvalidJob([Problem(path=_join(_COUNT, name), message="its values grow without end")])
        values.append(str(value))
        value = value * factor + step
    return values


def _read_number(keyword: str, value: Value) -> int | float:
    if isinstance(value, str) and _INTEGER.fullmatch(value):
        return int(value)
    number = as_number(value) if isinstance(value, str) else value
    if isinstance(number, bool) or not isinstance(number, int | float):
        raise InvalidJob([Problem(path=keyword, message=f"{str(value)[:80]!r} is not a number")])
    return float(number)


def _list_items(value: Value, name: str) -> list[str]:
    items = value if isinstance(value, list) else [each.strip() for each in value.split(",")]
    places = name in ("Site", "BannedSites")
    return [each for each in items if each and not (places and each.lower() == _ANY)]


def _format_foreign(value: Value) -> str:
    return value if isinstance(value, str) else "{" + ", ".join(value) + "}"


def write_jdl(body: Mapping[str, object], job: Job) -> str:
    """The text of a stored description for genuine clients; `InvalidJob` names what they cannot read."""
    given: dict[str, object] = {
        name: value[0] if name in _SINGLE and isinstance(value, list) and len(value) == 1 else value
        for name, value in body.items()
        if name in _LISTS | _TEXTS | _NUMBERS
    }
    environment = body.get("ExecutionEnvironment")
    if isinstance(environment, Mapping):
        given["ExecutionEnvironment"] = [f"{name}={value}" for name, value in environment.items()]
    given.setdefault("JobType", DEFAULT_TYPE)
    foreign = body.get(FOREIGN)
    known = {
        "JobID": job.job_id,
        "Owner": job.owner,
        "OwnerGroup": job.owner_group,
        "VirtualOrganization": job.vo,
        "Priority": given.pop("Priority", job.priority),
    }
    lines = [_write(name, value) for name, value in sorted({**given, **known}.items())]
    if isinstance(foreign, Mapping):
        lines += [
            f"    {name} = {value};" if str(value).startswith("{") else _write(name, value)
            for name, value in foreign.items()
            if name not in known and name not in given
        ]
    return "\n".join(("[", *lines, "]"))


def _write(name: str, value: object) -> str:
    if isinstance(value, bool):
        return f"    {name} = {str(value).lower()};"
    if isinstance(value, int | float):
        return f"    {name} = {value:.15g};"
    if isinstance(value, list | tuple):
        # DIRAC's parser needs the blank behind each comma.
        return f"    {name} = {{{', '.join(_quote(name, each) for each in value)}}};"
    return f"    {name} = {_quote(name, value)};"


def _quote(name: str, value: object) -> str:
    text = str(value)
    if wrong := sorted(_UNREADABLE.intersection(text)):
        signs = " ".join(map(repr, wrong))
        message = f"{text!r:.80} contains {signs}, which JobAgents of DIRAC cannot read"
        raise InvalidJob([Problem(path=name, message=message)])
    return f'"{text}"'


def require_readable(body: Mapping[str, object]) -> None:
    """`InvalidJob` unless genuine JobAgents can read a description, with its placeholders."""
    foreign = body.get(FOREIGN)
    own = {name: value for name, value in body.items() if name != FOREIGN and not _PARAMETER.fullmatch(name)}
    for name, value in {**(foreign if isinstance(foreign, Mapping) else {}), **own}.items():
        if name in own or not str(value).startswith("{"):
            _write(name, value)
