"""DIRAC's dialect of JDL: values need no quotes, brackets and the last semicolon may be missing.

What JobAgents get is written so that DIRAC's own parser splits it correctly: it reads neither quotes nor
nested values. Keywords that only DIRAC has are kept, and written back.

Source: DIRAC 9.1, `ClassAdLight.py`, `JDL.py`, `JobAgent._getJDLParameters`.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from cs_config.options import bounds, keywords
from optimizers.description import description as descriptions
from optimizers.description.description import JobDescription
from requirements.errors import InvalidJob, Problem
from requirements.values import MAX_INTEGER, as_number
from taskqueue.jobs import placeholders
from taskqueue.jobs.jobs import Job

#: Keywords with which a description may come, and under which it is given back.
_KEYWORDS: Final = frozenset(
    {
        *("Arguments", "BannedSites", "CPUTime", "Executable", "ExecutionEnvironment", "GridCE", "InputData"),
        *("InputDataPolicy", "JobConfigArgs", "JobGroup", "JobName", "JobType", "LogLevel", "MaxRAM"),
        *("MaxNumberOfProcessors", "MinNumberOfProcessors", "MinRAM", "NumberOfProcessors", "OutputData"),
        *("OutputPath", "OutputSE", "OutputSandbox", "Platform", "Priority", "Site", "StdError", "StdOutput"),
        "Tags",
    }
)
#: Set from the certificate, or computed, whatever the text has.
_OVERWRITTEN: Final = frozenset(
    {
        *("Owner", "OwnerDN", "OwnerGroup", "OwnerName", "VirtualOrganization", "VO", "DIRACSetup", "JobID"),
        "JobRequirements",
    }
)
#: Keyword of a description for those that only DIRAC has.
FOREIGN: Final = "ForeignKeywords"
#: DIRAC's job type of jobs that have none.
DEFAULT_TYPE: Final = "User"
#: Keywords that have one text or number in DIRAC, and a list here.
_SINGLE: Final = frozenset({"GridCE", "InputDataPolicy", "OutputPath", "OutputSE", "Platform"})
#: A parameter of a parametric job: `Parameters`, `ParameterStart.A`.
_PARAMETER: Final = re.compile(r"(Parameters|ParameterStart|ParameterStep|ParameterFactor)(\.\w+)?")
_COUNT: Final = "Parameters"
#: A placeholder of one: `%s`, `%(A)s`.
_PLACEHOLDER: Final = re.compile(r"%(?:s|\((\w+)\)s)")
#: What values of parameters start with, what is added to each, and with what it is multiplied before, as in
#: DIRAC; here they are counted from 0.
_PROGRESSION: Final = {"ParameterStart": 1, "ParameterStep": 0, "ParameterFactor": 1}
_INTEGER: Final = re.compile(r"[+-]?\d{1,18}")
#: Characters that DIRAC's parser takes for the end of a value, or for a nested one.
_ENDING: Final = frozenset(';["\n')
#: Those that JobAgents leave out of a list, and that they put into quotes elsewhere: those a shell removes.
_BRACES: Final = frozenset("{}")
#: The keyword that JobWrappers pass to a shell.
_SHELL: Final = "Arguments"
#: The first character of an attribute.
_BEGIN: Final = re.compile(r"[^ \t\r\n;]")
# These need time and memory in proportion to the text: no repetition gives back what it took.
_NAME: Final = re.compile(r"([^=;]*+)=")
#: A text in quotes, and one in braces whose quotes are closed, up to the end of its value.
_QUOTED: Final = re.compile(r'\s*+"((?:[^"\\]++|\\.)*+)"\s*+(?:;|\Z)', re.DOTALL)
_BRACED: Final = re.compile(r'\s*+(\{(?:[^{}"]++|"[^"]*+"|\{[^{}]*+\})*+\})\s*+(?:;|\Z)', re.DOTALL)
_ITEM: Final = re.compile(r'\s*+(?:"([^"]*+)"|\{([^{}]*+)\}|([^,"]*+))\s*+(?:,|\Z)')
_OPENING: Final = re.compile(r"\s*+\[")
_BRACKET: Final = re.compile(r"[\[\]]")
_END: Final = re.compile(r"\s*+(?:;|\Z)")
#: Records in one another that DIRAC does not read.
_NESTED: Final = 10


class _Quoted(str):
    """An item of a list that is written in quotes."""

    __slots__ = ()


#: A list of parameters may have lists as items.
Item = str | list[str]
#: A text, with the brackets of a record if it is one, or a list.
Value = str | list[Item]


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
    at = number = characters = 0
    while (begin := _BEGIN.search(body, at)) is not None:
        at = begin.start()
        name = _NAME.match(body, at)
        if name is None or not name[1].strip():
            line = body.count("\n", 0, at) + 1
            message = f"line {line}: {body[at : at + 40]!r} is no `Name = value;`"
            raise InvalidJob([Problem(path="description", message=message)])
        value, end = _read_value(name[1].strip(), body, name.end())
        is_parameter = _PARAMETER.fullmatch(name[1].strip()) is not None
        number, characters = number + 1, characters + (0 if is_parameter else end - at)
        _require_most(number, bounds.DIRAC_KEYWORDS, "keywords")
        _require_most(characters, bounds.FILLED, "characters beside the values of parameters")
        yield name[1].strip(), value
        at = end


def _require_most(seen: int, most: int, what: str) -> None:
    if seen > most:
        message = f"has {seen:,} {what}, allowed are {most:,}"
        raise InvalidJob([Problem(path="description", message=message)])


def _read_value(name: str, body: str, at: int) -> tuple[Value, int]:
    """The value at a place of a text, and where the next keyword may begin."""
    if quoted := _QUOTED.match(body, at):
        return re.sub(r'\\(["\\])', r"\1", quoted[1]).replace("\n", ""), quoted.end()
    if braced := _BRACED.match(body, at):
        return _read_items(braced[1][1:-1]), braced.end()
    if _OPENING.match(body, at):
        record, end = _find_record(name, body, at)
        return record.replace("\n", ""), end
    end = body.find(";", at)
    end = len(body) if end < 0 else end
    return body[at:end].replace("\n", "").replace('"', "").strip(), end


def _find_record(name: str, body: str, at: int) -> tuple[str, int]:
    """A value in brackets, such as `[ a = 1; ]`, and where the next keyword may begin.

    As in DIRAC brackets count also within quotes. `InvalidJob` if they are not closed.
    """
    depth = start = 0
    for bracket in _BRACKET.finditer(body, at):
        start = start if depth else bracket.start()
        depth += 1 if bracket[0] == "[" else -1
        if depth == 0 and (end := _END.match(body, bracket.end())):
            return body[start : bracket.end()], end.end()
        if depth in (0, _NESTED):
            break
    message = f"begins with a bracket that is not closed at its end (less than {_NESTED} in one another)"
    raise InvalidJob([Problem(path=name, message=message)])


def _read_items(text: str) -> list[Item]:
    found: list[Item] = []
    number = at = 0
    while at < len(text):
        item = _ITEM.match(text, at)
        if item is None or item.end() == at:  # a quote in the middle of a word
            parts = text[at:].split(",", bounds.DIRAC_ITEMS)
            found += [part.replace('"', "").strip() for part in parts]
            number += len(parts)
            break
        quoted, braced, bare = item.groups()
        nested = None if braced is None else [str(each) for each in _read_items(braced)]
        word = _Quoted(quoted.strip()) if quoted else (bare or "").strip()
        found.append(word if nested is None else nested)
        number += max(1, len(nested or ()))
        if number > bounds.DIRAC_ITEMS:
            break
        at = item.end()
    _require_most(number, bounds.DIRAC_ITEMS, "items in a list")
    return [item for item in found if item != ""]


def _to_ours(read: Mapping[str, Value]) -> dict[str, object]:
    """Keywords that both have in our form, all others as foreign ones."""
    ours: dict[str, object] = dict(_count_parameters(read))
    foreign: dict[str, Value] = {}
    for name, value in read.items():
        if name in _OVERWRITTEN or _PARAMETER.fullmatch(name):
            continue
        known = _read_known(name, value) if name in _KEYWORDS else None
        if known is None:
            foreign[name] = value
        elif known:
            ours[name] = known
    for name, written in _write_lists_out({**ours, **foreign}, dict(_find_lists(ours))):
        (foreign if name in foreign else ours)[name] = written
    ours.setdefault("JobType", DEFAULT_TYPE)
    if foreign:
        ours[FOREIGN] = foreign
    return ours


def _read_known(name: str, value: Value) -> Value | None:
    """The value of one of our keywords; None: a list, of which DIRAC makes a text of its own."""
    if isinstance(value, str) or keywords.BY_NAME[name].is_list:
        return value
    return value[0] if len(value) == 1 and isinstance(value[0], str) else None


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


def _find_lists(ours: Mapping[str, object]) -> Iterator[tuple[str, Sequence[Item]]]:
    """The parameters with a value that is a list."""
    for name, column in ours.items():
        head, _, key = name.partition(".")
        if head == _COUNT and isinstance(column, list) and any(isinstance(each, list) for each in column):
            yield key, column


def _write_lists_out(
    stated: Mapping[str, object], lists: Mapping[str, Sequence[Item]]
) -> Iterator[tuple[str, Any]]:
    """Keywords in which parameters that are `lists` become text, with the parameters of their texts.

    DIRAC makes a text of such a value, `{a,b}`, wherever the keyword is no list; here its items would be
    words. Within an item of a list it has no braces, so its commas end the item.
    """
    for name, value in stated.items():
        if isinstance(value, str):
            found = _PLACEHOLDER.fullmatch(value)
            known = keywords.BY_NAME.get(name)
            if found is None or known is None or known.is_list or (found[1] or "") not in lists:
                continue
            written = f"{{{found[1] or 's'}}}"  # no name of a parameter in DIRAC
            yield name, f"%({written})s"
            yield _join(_COUNT, written), [placeholders.format_value(each) for each in lists[found[1] or ""]]
        elif isinstance(value, list) and not _PARAMETER.fullmatch(name):
            yield from _write_items_out(name, value, lists)


def _write_items_out(
    name: str, items: Sequence[Item], lists: Mapping[str, Sequence[Item]]
) -> Iterator[tuple[str, Any]]:
    """A list with items such as `LFN:%(A)s`, where A is a list, with the parameter of its text: `a, b`."""
    used: set[str] = set()
    for item in items:
        if not isinstance(item, str) or _PLACEHOLDER.fullmatch(item):
            continue
        inside = {each[1] or "" for each in _PLACEHOLDER.finditer(item)} & lists.keys()
        if isinstance(item, _Quoted) and any(_has_many(lists[key]) for key in inside):
            message = (
                f"{str(item)!r} has a list within quotes, which DIRAC refuses: write the placeholder alone, "
                "and the rest of the text in each value of the parameter"
            )
            raise InvalidJob([Problem(path=name, message=message)])
        used |= inside
    if not used:
        return

    def name_text(place: re.Match[str]) -> str:
        return f"%(,{place[1] or 's'})s" if (place[1] or "") in used else place[0]

    written = [_PLACEHOLDER.sub(name_text, item) for item in items if isinstance(item, str)]
    # A text of ours is split at its commas when the values are in it.
    yield name, ", ".join(written) if name in _KEYWORDS else written
    for key in sorted(used):
        texts = [", ".join(each) if isinstance(each, list) else each for each in lists[key]]
        yield _join(_COUNT, f",{key or 's'}"), texts


def _has_many(column: Sequence[Item]) -> bool:
    """Whether a value of a parameter is a list of several items."""
    return any(isinstance(each, list) and len(each) > 1 for each in column)


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


def write_jdl(body: Mapping[str, object], job: Job) -> str:
    """The text of a stored description for genuine clients; `InvalidJob` names what they cannot read."""
    known = {
        "JobID": job.job_id,
        "Owner": job.owner,
        "OwnerGroup": job.owner_group,
        "VirtualOrganization": job.vo,
        "Priority": body.get("Priority", job.priority),
    }
    return "\n".join(("[", *_list_lines(body, known), "]"))


def format_jdl(stated: Mapping[str, object]) -> str:
    """The text of keywords, whether DIRAC knows them or not; `InvalidJob` names what it cannot read."""
    foreign = {
        name: f"{{{', '.join(map(str, value))}}}" if isinstance(value, list | tuple) else value
        for name, value in stated.items()
        if name not in _KEYWORDS
    }
    return "\n".join(("[", *_list_lines({**stated, FOREIGN: foreign}, {}), "]"))


def require_readable(description: JobDescription) -> None:
    """`InvalidJob` unless genuine JobAgents can read the description of a job."""
    for _ in _list_lines(descriptions.stored_body(description), {}):
        pass


def _list_lines(body: Mapping[str, object], known: Mapping[str, object]) -> Iterator[str]:
    """The attributes of a description; those in `known` replace its own."""
    given: dict[str, object] = {
        name: value[0] if name in _SINGLE and isinstance(value, list) and len(value) == 1 else value
        for name, value in body.items()
        if name in _KEYWORDS
    }
    environment = body.get("ExecutionEnvironment")
    if isinstance(environment, Mapping):
        given["ExecutionEnvironment"] = [f"{name}={value}" for name, value in environment.items()]
    given.setdefault("JobType", DEFAULT_TYPE)
    given.update(known)
    for name, value in sorted(given.items()):
        yield f"    {name} = {_format_value(name, value)};"
    foreign = body.get(FOREIGN)
    for name, value in foreign.items() if isinstance(foreign, Mapping) else ():
        if name not in given:
            yield f"    {name} = {_format_foreign(name, str(value))};"


def _format_value(name: str, value: object) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, int | float):
        return f"{value:.15g}"
    if isinstance(value, list | tuple):
        # DIRAC's parser needs the blank behind each comma.
        items = (_quote(name, str(each), _ENDING | _BRACES, blanks=False) for each in value)
        return f"{{{', '.join(items)}}}"
    return _quote(name, str(value), _ENDING if name == _SHELL else _ENDING | _BRACES)


def _format_foreign(name: str, text: str) -> str:
    """A value that is kept: DIRAC makes the same of its list, or its record."""
    if text.startswith("{"):
        return _quote(name, text, _ENDING)[1:-1]
    if text.startswith("[") and _find_record(name, text, 0)[0] == text:
        return text
    return _quote(name, text, _ENDING)


def _quote(name: str, text: str, unreadable: frozenset[str], *, blanks: bool = True) -> str:
    wrong = unreadable.intersection(text) | {each for each in text if each.isspace() and not blanks}
    if wrong:
        signs = " ".join(map(repr, sorted(wrong)))
        message = f"{text!r:.80} contains {signs}, which JobAgents of DIRAC cannot read"
        raise InvalidJob([Problem(path=name, message=message)])
    return f'"{text}"'
