"""From one description as it was sent to the jobs that it makes, each checked."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from cs_config.configuration import Configuration
from cs_config.operations import operations
from cs_config.options import Operations
from optimizers import description as descriptions
from optimizers import parametric, sandbox
from optimizers import template as templates
from optimizers.member import Member
from optimizers.submitter import Ownership, Submitter, ownership
from requirements.errors import InvalidJob
from requirements.problem import Problem


@dataclass(frozen=True, slots=True, kw_only=True)
class Submitted:
    """Jobs that share a stored description."""

    body: Mapping[str, object]  #: with its placeholders
    sandbox: str | None  #: digest
    whose: Ownership
    members: Sequence[Member]


def expand(
    raw: Mapping[str, object], submitter: Submitter, config: Configuration, archive: str | None
) -> list[Submitted]:
    """The jobs of one description; those that can share a stored one do.

    Args:
        raw: The description as read.
        submitter: Who sent it.
        config: What to check against.
        archive: Reference of the sandbox that was sent for the whole submission.

    Raises:
        InvalidJob: With every problem of the first job that has some.
    """
    whose = _ownership(raw, submitter, config)
    options = operations(config, whose.vo)
    template = parametric.without_parameters(raw)
    members = list(_members(raw, template, options))
    for member in members:
        if wrong := list(sandbox.problems(member.description, archive)):
            raise InvalidJob([Problem(path="InputSandbox", message=message) for message in wrong])
        if unfit := list(descriptions.grid_job_problems(member.description, member.arguments, options)):
            raise InvalidJob(unfit)
    return [
        Submitted(body=body, sandbox=sandbox.chosen(some[0].description, archive), whose=whose, members=some)
        for body, some in _bundles(template, members, options)
    ]


def _ownership(raw: Mapping[str, object], submitter: Submitter, config: Configuration) -> Ownership:
    """Whose jobs they are; if that cannot be told, what else is wrong is told with it."""
    try:
        return ownership(raw, submitter, config)
    except InvalidJob as nobody:
        problems = list(nobody.problems)
    try:
        list(_members(raw, parametric.without_parameters(raw), operations(config, None)))
    except InvalidJob as invalid:
        problems += invalid.problems
    raise InvalidJob(problems)


def _members(
    raw: Mapping[str, object], template: Mapping[str, object], options: Operations
) -> Iterator[Member]:
    if not parametric.is_parametric(raw):
        yield Member(description=descriptions.parse(raw, options), parameters=None)
        return
    expanded = parametric.expand(raw, most=options.job_description.max_parametric_jobs)
    yield from templates.members(template, expanded, options)


def _bundles(
    template: Mapping[str, object], members: Sequence[Member], options: Operations
) -> list[tuple[Mapping[str, object], Sequence[Member]]]:
    """The stored bodies with their jobs: one for all, unless a placeholder stands where only a number may."""
    if members[0].parameters is None:
        return [(descriptions.body(members[0].description), members)]
    try:
        shared = descriptions.body(descriptions.parse(template, options))
    except InvalidJob:
        shared = {}
    if templates.says_the_same(shared, members):
        return [(shared, members)]
    return [(descriptions.body(each.whole), [replace(each, parameters=None)]) for each in members]
