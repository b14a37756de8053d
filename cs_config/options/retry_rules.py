"""Rules for jobs that failed: after which ends they run again, how often, and with which changes.

A rule is one line, `137 or memory limit: Memory x 1.5, twice`: ends, a colon, changes and a number of times.
The first rule that names an end decides about it. How often a rule was used follows from the ends of a job's
attempts, so nothing is counted beside these.

Source: PanDA's Job Retry Module, WMAgent's RetryManager.
"""

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Final

from cs_config.options import bounds, job_rules
from cs_config.options.job_rules import JobRuleError, ValueChange
from requirements.errors import did_you_mean, format_count
from requirements.values import fold

#: The reason of attempts whose pilot was lost, which nobody reports: the job has not failed.
PILOT_LOST: Final = "pilot lost"
#: Names of ends, with the minor statuses that mean each: of our pilots, then of DIRAC's job wrapper.
REASONS: Final[Mapping[str, tuple[str, ...]]] = {
    "memory limit": ("Job has exceeded its memory limit",),
    "time limit": (
        "Job has exceeded maximum wall clock time",
        "Job has reached the CPU limit of the queue",
    ),
    "scratch limit": (
        "Job has exceeded its scratch space limit",
        "Job has insufficient disk space to continue",
    ),
    "input sandbox": ("Failed Downloading InputSandbox",),
    "output sandbox": ("Failed Uploading OutputSandbox",),
    "no program": ("Application not found",),
    PILOT_LOST: (PILOT_LOST,),
}
#: Every end but that of a lost pilot.
ANY_FAILURE: Final = "any failure"

_ENDS: Final = re.compile(r"\s+or\s+|\s*,\s*", re.IGNORECASE)
_CODES: Final = re.compile(r"(\d{1,10})(?:\s*-\s*(\d{1,10}))?")
_WORDS: Final[Mapping[str, int]] = {"never": 0, "once": 1, "twice": 2}
_TIMES: Final = re.compile(rf"{'|'.join(_WORDS)}|(\d{{1,10}})\s+times?", re.IGNORECASE)
_ANOTHER_SITE: Final = "another site"
_ALLOWED: Final = (
    f"allowed are {job_rules.VALUE_CHANGES}, another site, after 10 min, once, twice, 3 times, and never"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Ending:
    """How an attempt ended."""

    reason: str  #: minor status
    exit_code: int | None = None

    @property
    def is_loss(self) -> bool:
        """Whether the pilot was lost, so that nobody reported an end."""
        return self.reason == PILOT_LOST

    def describe(self) -> str:
        """The end, for people."""
        return self.reason if self.exit_code is None else f"{self.reason}, exit code {self.exit_code}"


@dataclass(frozen=True, slots=True, kw_only=True)
class RetryRule:
    """Ends after which a job runs again, and what changes then."""

    text: str
    codes: tuple[tuple[int, int], ...] = ()  #: exit codes, from and to
    reasons: tuple[str, ...] = ()  #: of `REASONS`, or `ANY_FAILURE`
    values: tuple[ValueChange, ...] = ()
    is_elsewhere: bool = False  #: not at the same site again
    delay: int = 0  #: seconds until it may run again
    times: int = 1

    def covers(self, ending: Ending) -> bool:
        """Whether the rule names an end."""
        if any(ending.reason in REASONS[each] for each in self.reasons if each != ANY_FAILURE):
            return True
        if ending.is_loss:
            return False
        code = ending.exit_code
        return ANY_FAILURE in self.reasons or (
            code is not None and any(low <= code <= high for low, high in self.codes)
        )


def find_rule(rules: Iterable[RetryRule], ending: Ending) -> RetryRule | None:
    """The rule that decides about an end: the first that names it."""
    return next((rule for rule in rules if rule.covers(ending)), None)


def count_uses(rules: Sequence[RetryRule], rule: RetryRule, endings: Iterable[Ending]) -> int:
    """How many of some ends a rule decides about."""
    return sum(find_rule(rules, each) == rule for each in endings)


def read_rules(raw: object) -> tuple[str, ...]:
    """The texts of valid rules, with single blanks; JobRuleError."""
    texts = job_rules.split_rules(raw, "137: Memory x 1.5, twice")
    rules = [parse_rule(each) for each in texts]
    job_rules.check_changes(sum(len(each.values) for each in rules))
    named: set[tuple[int, int] | str] = set()
    for rule in rules:
        # A set: a rule may have a hundred ends. A range within another one is not looked for.
        ends: set[tuple[int, int] | str] = {*rule.codes, *rule.reasons}
        if not (ends - named) or (ANY_FAILURE in named and PILOT_LOST not in ends - named):
            raise JobRuleError(f"{rule.text!r} never applies: rules before it name the same ends")
        named |= ends
    return texts


@lru_cache(maxsize=1_000)  # the same rules for many jobs
def parse_rule(text: str) -> RetryRule:
    """A rule; JobRuleError."""
    ends, changes = job_rules.split_rule(text, f"exit code or reason: changes', {_ALLOWED}")
    rule = RetryRule(text=text)
    for end in _ENDS.split(ends):
        rule = _add_end(rule, end)
    for change in changes:
        rule = _add_change(rule, change)
    for name, pattern in _ONCE.items():
        found = [each for each in changes if pattern.fullmatch(each)]
        if len(found) > 1:
            raise JobRuleError(f"{text!r}: allowed is one {name}, not {' and '.join(found)}")
    if not rule.times and len(changes) > 1:
        raise JobRuleError(f"{text!r}: what never runs again has no other changes")
    return rule


def _add_end(rule: RetryRule, end: str) -> RetryRule:
    if codes := _CODES.fullmatch(end):
        low, high = int(codes[1]), int(codes[2] or codes[1])
        if low > high:
            raise JobRuleError(f"{end!r}: {low} is more than {high}")
        return replace(rule, codes=(*rule.codes, (low, high)))
    known = (*REASONS, ANY_FAILURE)
    if fold(end) not in known:
        meant = did_you_mean(end, known)
        hint = f"did you mean {meant}?" if meant else f"allowed are exit codes, {', '.join(known)}"
        raise JobRuleError(f"{end!r} is no end of a job, {hint}")
    return replace(rule, reasons=(*rule.reasons, fold(end)))


def _add_change(rule: RetryRule, change: str) -> RetryRule:
    for pattern, add in _CHANGES:
        if found := pattern.fullmatch(change):
            return add(rule, found)
    value = job_rules.parse_value_change(change)
    if value is None:
        raise JobRuleError(f"{change!r} is no change, {_ALLOWED}")
    return replace(rule, values=(*rule.values, value))


def _add_times(rule: RetryRule, found: re.Match[str]) -> RetryRule:
    word = fold(found[0])
    times = _WORDS[word] if word in _WORDS else int(found[1])
    if times > bounds.RETRIES:
        raise JobRuleError(f"{format_count(times, 'time')} are too many, allowed are {bounds.RETRIES}")
    return replace(rule, times=times)


def _add_delay(rule: RetryRule, found: re.Match[str]) -> RetryRule:
    return replace(rule, delay=job_rules.read_seconds(found))


def _add_elsewhere(rule: RetryRule, _: re.Match[str]) -> RetryRule:
    return replace(rule, is_elsewhere=True)


_CHANGES: Final[Sequence[tuple[re.Pattern[str], Callable[[RetryRule, re.Match[str]], RetryRule]]]] = (
    (_TIMES, _add_times),
    (re.compile(_ANOTHER_SITE, re.IGNORECASE), _add_elsewhere),
    (job_rules.DELAY, _add_delay),
)
#: Parts that a rule has once, by what they are.
_ONCE: Final[Mapping[str, re.Pattern[str]]] = {"number of times": _TIMES, "time to wait": job_rules.DELAY}
