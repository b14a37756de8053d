"""Placeholders in a job description that jobs share, and the values of each job.

Source: DIRAC's parametric jobs (`%s`, `%n`, `%(name)s`); `JobDB.insertNewJobIntoDB`, which replaces `%j`.
Imports no database: clients count jobs without one.
"""

import re
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass

#: `%(name)s`, or `%s` and `%n`, whose name is one letter.
_PLACEHOLDER = re.compile(r"%(?P<long>\()?(?P<name>(?(long)[^()%]+|[sn]))(?(long)\)s)")
_JOB_ID = "%j"
#: Expressions, in which `%` is an operator, and the form in JSON of those with other names.
_EXPRESSIONS = frozenset({"Requirements", "Rank"})
_EXPRESSION = frozenset({"expression"})
_SOURCE_PLACEHOLDER = re.compile(r"%\(([A-Za-z]+)=\)s")

#: Value by name: `s` for `%s`, `n` for `%n`, `A` for `%(A)s`. A value that is not a string replaces a string
#: that consists of its placeholder: the items of a list become items of the list in which the string is.
Parameters = Mapping[str, object]


def fill_placeholders(body: Mapping[str, object], parameters: Parameters | None) -> dict[str, object]:
    """The description of one job: the shared one with this job's values in it.

    Strings at any depth may hold placeholders. Without parameters percent signs have no meaning.
    """
    if not parameters:
        return dict(body)
    return {name: fill_value(value, parameters) for name, value in body.items()}


def fill_value(value: object, parameters: Parameters) -> object:
    """A value of a description with the placeholders in it filled; unknown ones stay."""
    if isinstance(value, str) and "%" in value:
        if whole := _PLACEHOLDER.fullmatch(value):
            return parameters.get(whole["name"], value)
        return _PLACEHOLDER.sub(lambda place: format_value(parameters.get(place["name"], place[0])), value)
    if isinstance(value, Mapping):
        return {name: fill_value(item, parameters) for name, item in value.items()}
    if isinstance(value, list | tuple):
        items: list[object] = []
        for item in value:
            filled = fill_value(item, parameters)
            items += filled if isinstance(item, str) and isinstance(filled, list) else [filled]
        return items
    return value


def has_job_id(text: str) -> bool:
    """Whether a text, such as a description in JSON, may have the placeholder of the job's id."""
    return _JOB_ID in text


def fill_job_id(body: Mapping[str, object], job_id: int) -> dict[str, object]:
    """The description of one job with its id for each `%j`, as in DIRAC, but not in expressions.

    So it is for every job, since one text may be submitted by clients of DIRAC and by ours, and taken by
    pilots of both. It comes after the values of parameters, which may have this placeholder, too. Optimizers
    see `%j`: the id is not known before, and jobs that share a description share their results.
    """
    return {
        name: value if name in _EXPRESSIONS else put_job_id(value, job_id) for name, value in body.items()
    }


def put_job_id(value: object, job_id: int) -> object:
    """A value of a description, or a part of one, with the id for each `%j`."""
    if isinstance(value, str):
        return value.replace(_JOB_ID, str(job_id))
    if isinstance(value, Mapping) and value.keys() != _EXPRESSION:
        return {name: put_job_id(item, job_id) for name, item in value.items()}
    if isinstance(value, list | tuple):
        return [put_job_id(item, job_id) for item in value]
    return value


@dataclass(frozen=True, slots=True, kw_only=True)
class Places:
    """Places in a value of a description for values of each job."""

    characters: int  #: of the strings that may have placeholders
    uses: Counter[str]  #: by name


def find_places(value: object) -> Places:
    """The places in a value, at any depth."""
    characters = 0
    names: Counter[str] = Counter()
    left = [value]
    while left:
        match left.pop():
            case str() as text if "%" in text:
                characters += len(text)
                names.update(place["name"] for place in _PLACEHOLDER.finditer(text))
            case Mapping() as record:
                left.extend(record.values())
            case list() | tuple() as items:
                left.extend(items)
    return Places(characters=characters, uses=names)


def format_value(value: object) -> str:
    """A value as part of a longer string; a list as DIRAC writes it there, `{a,b}`."""
    return "{" + ",".join(map(str, value)) + "}" if isinstance(value, list) else str(value)


def fill_source(text: str, parameters: Parameters | None) -> str:
    """The source text of one job among jobs whose texts differ in some values only.

    Such a value has a placeholder `%(X=)s`; the name `X==` has the value as the user wrote it, where our
    spelling differs.
    """
    if not parameters:
        return text
    return _SOURCE_PLACEHOLDER.sub(lambda place: _restore_text(place, parameters), text)


def _restore_text(place: re.Match[str], parameters: Parameters) -> str:
    """The original text; a placeholder without a value stays."""
    found = (parameters[name] for name in (f"{place[1]}==", f"{place[1]}=") if name in parameters)
    value = next(found, None)
    return place[0] if value is None else format_jdl_value(value)


def format_jdl_value(value: object) -> str:
    """A value in JDL syntax: a string, an integer or a list of strings."""
    if isinstance(value, list):
        return "{" + ", ".join(f'"{item}"' for item in value) + "}"
    return f'"{value}"' if isinstance(value, str) else str(value)
