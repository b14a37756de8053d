"""Changes of a stored description: some of its keywords, or parts of its Requirements, get other values.

A name that is no keyword is a part of the Requirements, and so is a keyword that only they state; with
`Requirements.` before it every name is. What a document of DiracX's specification states is changed in it.
None takes a keyword, or a part, away.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from cs_config.options import keywords
from cs_config.options.keywords import UnfitValueError
from cs_config.options.options import VoOptions
from optimizers.description import document as documents
from optimizers.description.document import FieldPath
from requirements.classad import expression
from requirements.classad.expression import AttributeComparison
from requirements.classad.syntax_tree import TextSpan
from requirements.errors import InvalidJob, Problem
from requirements.kept import keep
from requirements.values import fold, format_value

#: Characters of a value in a note, and of the whole note: the log of each job has it.
_VALUE: Final = 200
_NOTE: Final = 2_000
_REQUIREMENTS: Final = "Requirements"
_LEVEL: Final = fold(documents.LEVEL)
_EXPRESSIONS: Final[Mapping[str, str]] = {
    "requirements": _REQUIREMENTS,
    "requirement": _REQUIREMENTS,
    "rank": "Rank",
}


@keep(16, lambda _, text: 100 * len(text))  # many jobs have one expression, and rules of retry many names
def read_comparisons(text: str) -> Sequence[AttributeComparison]:
    """The comparisons of one attribute with one literal in an expression."""
    return tuple(expression.comparisons(text))


@dataclass(frozen=True, slots=True, kw_only=True)
class ChangedBody:
    """A description with other values."""

    body: Mapping[str, object]
    note: str  #: what was changed, for people; empty: nothing


def change_body(body: Mapping[str, object], changes: Mapping[str, object], options: VoOptions) -> ChangedBody:
    """Change the JSON of a stored description; InvalidJob with the problem of each change.

    The result has to be checked as a submission is.
    """
    changed = dict(body)
    notes: list[str] = []
    problems: list[Problem] = []
    # The field of a level depends on the architecture.
    for name, value in sorted(changes.items(), key=lambda change: fold(change[0].strip()) == _LEVEL):
        try:
            notes += _change(changed, name, value, options)
        except UnfitValueError as unfit:
            problems.append(Problem(path=name, message=str(unfit)))
        except InvalidJob as error:
            problems += error.problems
    if problems:
        raise InvalidJob(problems)
    for place, limit in list(documents.find_grown_limits(body, changed, options.job_description.filled_in)):
        notes += _replace_at(changed, place, limit)
    return ChangedBody(body=changed, note=_shorten(", ".join(notes), _NOTE))


def _change(body: dict[str, object], name: str, value: object, options: VoOptions) -> Iterator[str]:
    requirements = body.get(_REQUIREMENTS)
    if part := keywords.find_part(name):
        return _replace(body, _REQUIREMENTS, _change_part(requirements, part, value), part)
    folded = fold(name.strip())
    if folded in keywords.KEPT:
        raise InvalidJob([Problem(path=name, message=f"is not changed: {keywords.KEPT[folded]}")])
    keyword = keywords.find_keyword(name.strip())
    place = () if keyword is None else documents.find_place(body, keyword.name)
    is_stated = keyword is not None and (place or _find(body, keyword.name) is not None)
    if keyword is not None and (is_stated or not _is_part(folded, requirements)):
        new = None if value is None else keywords.as_json(keyword, keyword.read(value))
        return _replace_field(body, place, new) if place else _replace(body, keyword.name, new)
    if folded in _EXPRESSIONS:
        return _replace(body, _EXPRESSIONS[folded], value)
    own = next((each for each in options.job_description.extra if fold(each) == folded), None)
    if own is not None:
        return _replace(body, own, value)
    if keyword is None:
        _check_spelling(name.strip(), requirements, options)
    return _replace(body, _REQUIREMENTS, _change_part(requirements, name.strip(), value), name)


def _check_spelling(name: str, requirements: object, options: VoOptions) -> None:
    """Refuse a name that is new in the Requirements and looks like one that is known."""
    declared = options.job_description.declarations.names()
    if meant := keywords.find_alike(name, (*_list_parts(requirements), *declared)):
        message = "is no keyword, and is not in the Requirements; a new name there is stated with all of them"
        raise InvalidJob([Problem(path=name, message=message, suggestion=meant)])


def _list_parts(requirements: object) -> list[str]:
    """The names in the Requirements."""
    if isinstance(requirements, str):
        return [each.name for each in read_comparisons(requirements)]
    return [*requirements] if isinstance(requirements, Mapping) else []


def _is_part(folded: str, requirements: object) -> bool:
    return folded in map(fold, _list_parts(requirements))


def _replace(body: dict[str, object], name: str, value: object, part: str | None = None) -> Iterator[str]:
    """Replace a value; yields what has changed, by the name of the part if one did.

    The document stands beside the Requirements, under nearly their name.
    """
    alike = (each for each in body if each != documents.REQUIREMENTS and fold(each) == fold(name))
    spelled = next(alike, name)
    old = body.pop(spelled, None)
    if value is not None:
        body[name] = value
    if old != value:
        if part and isinstance(old, Mapping | None) and isinstance(value, Mapping | None):
            name, old, value = part, _find(old or {}, part), _find(value or {}, part)
        yield f"{name} {_format(old)} → {_format(value)}"


def _replace_field(body: dict[str, object], place: FieldPath, value: object) -> Iterator[str]:
    """Replace a value in a document; yields what has changed."""
    new_place = place if value is None else documents.find_new_place(body, place)
    for each, new in {place: None, new_place: value}.items():
        yield from _replace_at(body, each, new)


def _replace_at(body: dict[str, object], place: FieldPath, value: object) -> Iterator[str]:
    old, written = documents.read_field(body, place), documents.write_field(body, place, value)
    body.clear()
    body.update(written)
    if old != value:
        yield f"{'/'.join(place)} {_format(old)} → {_format(value)}"


def _find(record: Mapping[str, object], name: str) -> object:
    return next((value for spelled, value in record.items() if fold(spelled) == fold(name)), None)


def _format(value: object) -> str:
    if value is None:
        return "none"
    if isinstance(value, list):
        text = ", ".join(map(str, value))
    else:
        text = format_value(value) if isinstance(value, str | int | float | bool) else str(value)
    return _shorten(text, _VALUE)


def _shorten(text: str, most: int) -> str:
    return text if len(text) <= most else f"{text[:most]}…"


def _change_part(requirements: object, name: str, value: object) -> object:
    """The Requirements with another value of a name."""
    if isinstance(requirements, str):
        return _change_expression(requirements, name, value)
    record = dict(requirements) if isinstance(requirements, Mapping) else {}
    kept = {spelled: it for spelled, it in record.items() if fold(spelled) != fold(name)}
    return (kept if value is None else {**kept, name: value}) or None


def _change_expression(text: str, name: str, value: object) -> str:
    """An expression whose one comparison of this name has another value; without any it gets one."""
    found = [each for each in read_comparisons(text) if fold(each.name) == fold(name)]
    if len(found) > 1 or not isinstance(value, str | int | float):
        compared = f"compares {name} {len(found)} times" if len(found) > 1 else "is not shortened"
        message = f"the expression in Requirements {compared}: state a new expression as Requirements"
        raise InvalidJob([Problem(path=name, message=message)])
    if found:
        new = expression.render_comparison(found[0], found[0].operator, value)
        return expression.replace_part(text, found[0].whole, new)
    operator, nowhere = "==" if isinstance(value, str | bool) else ">=", TextSpan()
    added = AttributeComparison(
        attribute=f"other.{name}", operator=operator, value=value, literal=nowhere, whole=nowhere
    )
    return f"({text}) && {expression.render_comparison(added, operator, value)}"
