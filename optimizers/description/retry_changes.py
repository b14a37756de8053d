"""The values that a rule of retry gives a description, for `changes.change_body`."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

from cs_config.options import keywords
from cs_config.options.options import VoOptions
from cs_config.options.retry_rules import RetryRule, parse_rule
from optimizers.description import changes
from optimizers.description import document as documents
from optimizers.description.value_changes import StatedValues
from requirements.errors import InvalidJob, Problem

_BANNED: Final = "BannedSites"


@dataclass(frozen=True, slots=True, kw_only=True)
class FailedRun:
    """What a rule may need of the attempt that failed."""

    site: str = ""
    ram_mb: int | None = None  #: that the job was given, or more that it used; None: not known


_ANY_RUN: Final = FailedRun(ram_mb=1)


def find_values(
    rule: RetryRule, body: Mapping[str, object], options: VoOptions, run: FailedRun
) -> dict[str, object]:
    """The new values by name, of the JSON of a stored description; InvalidJob if a change has no old one."""
    stated = StatedValues(body=body, options=options, ram_mb=run.ram_mb)
    if problems := [found for change in rule.values if (found := stated.change(change))]:
        raise InvalidJob(problems)
    values = stated.changed
    if rule.is_elsewhere and run.site:
        values[_BANNED] = [*dict.fromkeys([*_list_banned(body, options), run.site])]
    return values


def _list_banned(body: Mapping[str, object], options: VoOptions) -> list[str]:
    """The sites that a description bans, also where it states them as one text."""
    stated = {**options.job_description.list_defaults(body), **body}.get(_BANNED)
    banned = documents.read_stated(body, _BANNED) or stated
    read: Any = () if banned is None else keywords.BY_NAME[_BANNED].read(banned)
    return [*read]


def find_unfit_rules(
    body: Mapping[str, object], rules: Sequence[str], options: VoOptions
) -> Iterator[Problem]:
    """The problems of rules whose changes the description cannot have, whatever its failures are like."""
    for text in rules:
        try:
            values = find_values(parse_rule(text), body, options, _ANY_RUN)
            for name, value in values.items():  # one by one: no other expression is parsed for each of them
                changes.change_body(body, {name: value}, options)
        except InvalidJob as error:
            yield from (replace(each, path=f"Retry/{each.path}") for each in error.problems)
