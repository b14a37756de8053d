"""What the members of a parametric job share: read once where the rest does not depend on their values."""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

from cs_config import keywords
from cs_config.keywords import Keyword
from cs_config.options import Operations
from optimizers import description as descriptions
from optimizers import own_side, parametric
from optimizers.description import JobDescription
from optimizers.member import Member
from requirements.errors import InvalidJob
from taskqueue import placeholders


def members(
    template: Mapping[str, object], expanded: Sequence[parametric.Member], options: Operations
) -> Iterator[Member]:
    """The jobs, one after the other.

    Args:
        template: What they share, placeholders and all.
        expanded: The values of each, at least one.
        options: Of the VO.

    Raises:
        InvalidJob: With every problem of the first job that has some.
    """
    if not _has_place(template):
        same = descriptions.parse(template, options)
        yield from (Member(description=same, parameters=values) for values in expanded)
        return
    model = _one(template, expanded[0], options)
    varied = _varied(template)
    for values in expanded:
        own = None if varied is None else _own(model, varied, values, options)
        description = model if own is not None else _one(template, values, options)
        yield Member(description=description, own=own or {}, parameters=values)


def says_the_same(body: Mapping[str, object], members: Sequence[Member]) -> bool:
    """Whether the body, with the values of each member, is the description of each."""
    first = members[0]
    rest = {name: value for name, value in body.items() if name not in _names(first)}
    if _has_place(rest) or any(
        each.description is not first.description or each.own.keys() != first.own.keys() for each in members
    ):
        return all(
            placeholders.fill(body, each.parameters) == descriptions.body(each.whole) for each in members
        )
    read = descriptions.body(first.description)
    if rest != {name: value for name, value in read.items() if name not in _names(first)}:
        return False
    varied = {name: value for name, value in body.items() if name not in rest}
    return all(placeholders.fill(varied, each.parameters) == each.own_body for each in members)


def _names(member: Member) -> frozenset[str]:
    """The keywords that it has for itself."""
    return frozenset(keywords.BY_ATTRIBUTE[attribute].name for attribute in member.own)


def _has_place(value: object) -> bool:
    return "%" in json.dumps(value, default=str)


def _varied(template: Mapping[str, object]) -> list[tuple[Keyword, object]] | None:
    """The keywords with placeholders; None: they decide on more than themselves."""
    found = [(keywords.find(name), value) for name, value in template.items() if _has_place(value)]
    own = [(keyword, value) for keyword, value in found if keyword and keyword.name in keywords.OPEN]
    return None if len(own) < len(found) or own_side.is_asked(template) else own


def _own(
    model: JobDescription,
    varied: Sequence[tuple[Keyword, object]],
    values: parametric.Member,
    options: Operations,
) -> Mapping[str, object] | None:
    """What a member has for itself, by attribute; None: something would be wrong."""
    filled = placeholders.fill({keyword.name: value for keyword, value in varied}, values)
    return descriptions.read_own(model, [(each, filled[each.name]) for each, _ in varied], options)


def _one(template: Mapping[str, object], values: parametric.Member, options: Operations) -> JobDescription:
    try:
        return descriptions.parse(placeholders.fill(template, values), options)
    except InvalidJob as invalid:
        shown = ", ".join(f"{name}={value}" for name, value in sorted(values.items()))
        raise InvalidJob(
            [
                replace(problem, message=f"{problem.message} (in the job with {shown})")
                for problem in invalid.problems
            ]
        ) from None
