"""Expand a submitted description into its jobs, each of them checked.

The parts of a parametric job that do not depend on the members' values are parsed once. An input sandbox is
an archive that was uploaded before, identified by the digest of its content.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from cs_config.options import keywords
from cs_config.options.keywords import Keyword
from cs_config.options.operations import options_for
from cs_config.options.options import VoOptions
from cs_config.tree.configuration import Configuration
from optimizers.description import description as descriptions
from optimizers.description import parametric
from optimizers.description.description import JobDescription
from optimizers.submit.submitter import Ownership, Submitter, resolve_ownership
from requirements.errors import InvalidJob, Problem
from taskqueue.jobs import placeholders


@dataclass(frozen=True, slots=True, kw_only=True)
class JobMember:
    """One job of a description, with the values that differ from the shared description."""

    description: JobDescription
    own: Mapping[str, Any] = field(default_factory=dict)  #: its own values, by attribute
    parameters: (
        placeholders.Parameters | None
    )  #: values for the placeholders of the shared body; None: it has none

    @property
    def whole(self) -> JobDescription:
        """The shared description with the job's own values."""
        return replace(self.description, **self.own) if self.own else self.description

    @property
    def arguments(self) -> str:
        """The job's own arguments, or the shared ones."""
        return str(self.own.get("arguments", self.description.arguments))

    @property
    def own_body(self) -> dict[str, object]:
        """The job's own values as in a stored description."""
        own = [(keywords.BY_ATTRIBUTE[attribute], value) for attribute, value in self.own.items()]
        return {keyword.name: keywords.as_json(keyword, value) for keyword, value in own}


def template_members(
    template: Mapping[str, object], expanded: Sequence[parametric.MemberValues], options: VoOptions
) -> Iterator[JobMember]:
    """Yield the jobs of a shared description with placeholders; InvalidJob is about the first invalid one."""
    if not parametric.has_place(template):
        same = descriptions.parse_description(template, options)
        yield from (JobMember(description=same, parameters=values) for values in expanded)
        return
    model = _read_member(template, expanded[0], options)
    varied = _varied(template)
    for values in expanded:
        own = None if varied is None else _own_values(model, varied, values, options)
        description = model if own is not None else _read_member(template, values, options)
        yield JobMember(description=description, own=own or {}, parameters=values)


def is_same_for_all(body: Mapping[str, object], members: Sequence[JobMember]) -> bool:
    """Whether the body, filled with the values of each member, equals the description of that member."""
    first = members[0]
    rest = {name: value for name, value in body.items() if name not in _names(first)}
    if parametric.has_place(rest) or any(
        each.description is not first.description or each.own.keys() != first.own.keys() for each in members
    ):
        return all(
            placeholders.fill_placeholders(body, each.parameters) == descriptions.stored_body(each.whole)
            for each in members
        )
    read = descriptions.stored_body(first.description)
    if rest != {name: value for name, value in read.items() if name not in _names(first)}:
        return False
    varied = {name: value for name, value in body.items() if name not in rest}
    return all(placeholders.fill_placeholders(varied, each.parameters) == each.own_body for each in members)


def _names(member: JobMember) -> frozenset[str]:
    """Keywords for which the member has its own value."""
    return frozenset(keywords.BY_ATTRIBUTE[attribute].name for attribute in member.own)


def _varied(template: Mapping[str, object]) -> list[tuple[Keyword, object]] | None:
    """Return the keywords with placeholders; None: they also affect other keywords."""
    found = parametric.read_anew(template)
    if found is template:
        return None
    return [(keyword, value) for name, value in found.items() if (keyword := keywords.find_keyword(name))]


def _own_values(
    model: JobDescription,
    varied: Sequence[tuple[Keyword, object]],
    values: parametric.MemberValues,
    options: VoOptions,
) -> Mapping[str, object] | None:
    """Return a member's own values by attribute; None: one is invalid."""
    filled = placeholders.fill_placeholders({keyword.name: value for keyword, value in varied}, values)
    return descriptions.read_own(model, [(each, filled[each.name]) for each, _ in varied], options)


def _read_member(
    template: Mapping[str, object], values: parametric.MemberValues, options: VoOptions
) -> JobDescription:
    try:
        return descriptions.parse_description(placeholders.fill_placeholders(template, values), options)
    except InvalidJob as invalid:
        shown = ", ".join(f"{name}={value}" for name, value in sorted(values.items()))
        raise InvalidJob(
            [
                replace(problem, message=f"{problem.message} (in the job with {shown})")
                for problem in invalid.problems
            ]
        ) from None


#: As returned by `POST /sandboxes`; DIRAC adds the prefix `SB:`.
_REFERENCE = re.compile(r"(?:SB:)?sha256:(?P<digest>[0-9a-f]{64})", re.IGNORECASE)


def _digest_of(reference: str) -> str | None:
    """Return the digest in `sha256:<64 hexadecimal digits>`; None for any other text."""
    found = _REFERENCE.fullmatch(reference.strip())
    return found["digest"].lower() if found else None


def _sandbox_digest(description: JobDescription, sent_along: str | None) -> str | None:
    """Return the digest of a job's archive: the one it names, else `sent_along`, that of the submission."""
    named = [digest for entry in description.input_sandbox if (digest := _digest_of(entry))]
    return named[0] if named else _digest_of(sent_along or "")


def _sandbox_problems(description: JobDescription, sent_along: str | None) -> Iterator[str]:
    """Yield messages about problems of the input sandbox."""
    if sent_along and _digest_of(sent_along) is None:
        yield f"{sent_along!r} is not a sandbox reference, which is sha256: and 64 hexadecimal digits"
        return
    named = [entry for entry in description.input_sandbox if _digest_of(entry)]
    if len(named) > 1:
        yield "names more than one archive"
    if named or sent_along:
        return
    files = [entry for entry in description.input_sandbox if not entry.upper().startswith("LFN:")]
    if files:
        yield (
            f"{', '.join(files[:3])}: not uploaded; send an archive to /sandboxes and name its reference, "
            "or use `pilotage job submit`"
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class SharedDescription:
    """Jobs that share a stored description."""

    body: Mapping[str, object]  #: with placeholders
    sandbox: str | None  #: digest
    whose: Ownership
    members: Sequence[JobMember]


def expand_description(
    raw: Mapping[str, object], submitter: Submitter, config: Configuration, archive: str | None
) -> list[SharedDescription]:
    """Expand one description into its jobs, grouped by the stored description that they can share.

    `archive` is the sandbox of the whole submission. InvalidJob has the problems of the first invalid job.
    """
    whose = _ownership(raw, submitter, config)
    options = options_for(config, whose.vo)
    template = parametric.without_parameters(raw)
    members = list(_expand_members(raw, template, options))
    for member in members:
        if wrong := list(_sandbox_problems(member.description, archive)):
            raise InvalidJob([Problem(path="InputSandbox", message=message) for message in wrong])
        if unfit := list(descriptions.grid_job_problems(member.description, member.arguments, options)):
            raise InvalidJob(unfit)
    return [
        SharedDescription(
            body=body, sandbox=_sandbox_digest(some[0].description, archive), whose=whose, members=some
        )
        for body, some in _bundles(template, members, options)
    ]


def _ownership(raw: Mapping[str, object], submitter: Submitter, config: Configuration) -> Ownership:
    """Determine the owner of the jobs; if that fails, report other problems of the description as well."""
    try:
        return resolve_ownership(raw, submitter, config)
    except InvalidJob as invalid_owner:
        problems = list(invalid_owner.problems)
    try:
        list(_expand_members(raw, parametric.without_parameters(raw), options_for(config, None)))
    except InvalidJob as invalid:
        problems += invalid.problems
    raise InvalidJob(problems)


def _expand_members(
    raw: Mapping[str, object], template: Mapping[str, object], options: VoOptions
) -> Iterator[JobMember]:
    if not parametric.is_parametric(raw):
        yield JobMember(description=descriptions.parse_description(raw, options), parameters=None)
        return
    expanded = parametric.expand_parameters(raw, most=options.job_description.max_parametric_jobs)
    yield from template_members(template, expanded, options)


def _bundles(
    template: Mapping[str, object], members: Sequence[JobMember], options: VoOptions
) -> list[tuple[Mapping[str, object], Sequence[JobMember]]]:
    """Group members by stored body: one for all, unless a placeholder is where only a number is allowed."""
    if members[0].parameters is None:
        return [(descriptions.stored_body(members[0].description), members)]
    try:
        shared = descriptions.stored_body(descriptions.parse_description(template, options))
    except InvalidJob:
        shared = {}
    if is_same_for_all(shared, members):
        return [(shared, members)]
    return [(descriptions.stored_body(each.whole), [replace(each, parameters=None)]) for each in members]
