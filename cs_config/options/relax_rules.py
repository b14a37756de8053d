"""Rules for jobs that wait long: what they give up, and after how long.

A rule is one line, `after 2 h: without CPUModel, Memory x 0.5`. Its time is the one in which the job could be
matched, as with `WaitingTTL`. A description has only the rules that are still to come: what is given up is
taken out together with its rule, in one transaction, so that no step is lost or made twice.

Source: the ladder of memory of HTCondor (`retry_request_memory`), in the other direction.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Final

from cs_config.options import bounds, job_rules
from cs_config.options.job_rules import JobRuleError, ValueChange

#: Keyword with the rules.
RELAX: Final = "Relax"

_EXAMPLE: Final = "after 2 h: without CPUModel, Memory x 0.5"
_ALLOWED: Final = f"after 2 h: changes', changes are {job_rules.VALUE_CHANGES}"


@dataclass(frozen=True, slots=True, kw_only=True)
class RelaxRule:
    """What a job gives up after a time."""

    text: str
    after: int  #: seconds in which it could be matched
    changes: str  #: as the rule states them
    values: tuple[ValueChange, ...]


def read_rules(raw: object) -> tuple[str, ...]:
    """The texts of valid rules in the order of their times, with single blanks; JobRuleError."""
    rules = parse_rules(job_rules.split_rules(raw, _EXAMPLE))
    job_rules.check_changes(sum(len(each.values) for each in rules))
    return tuple(each.text for each in rules)


def parse_rules(texts: Sequence[str]) -> list[RelaxRule]:
    """Rules in the order of their times; JobRuleError."""
    return sorted(map(parse_rule, texts), key=lambda rule: rule.after)


@lru_cache(maxsize=1_000)  # the same rules for many jobs
def parse_rule(text: str) -> RelaxRule:
    """A rule; JobRuleError."""
    when, changes = job_rules.split_rule(text, _ALLOWED)
    found = job_rules.DELAY.fullmatch(when)
    if found is None:
        raise JobRuleError(f"{when!r} is no time to wait, allowed is 'after 2 h' (s, min, h)")
    after = job_rules.read_seconds(found)
    if after < bounds.RELAX_AFTER:
        raise JobRuleError(f"{when!r} is too short, allowed are {bounds.RELAX_AFTER} s at least")
    return RelaxRule(text=text, after=after, changes=", ".join(changes), values=tuple(map(_parse, changes)))


def _parse(change: str) -> ValueChange:
    value = job_rules.parse_value_change(change)
    if value is None:
        raise JobRuleError(f"{change!r} is no change, allowed are {job_rules.VALUE_CHANGES}")
    return value


def find_first(texts: Sequence[str]) -> int:
    """Seconds until the first of some rules; 0: there are none."""
    return min((parse_rule(each).after for each in texts), default=0)
