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

from cs_config.options import bounds
from requirements.errors import did_you_mean, format_count
from requirements.values import as_number, fold, format_value

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

_BLANKS: Final = re.compile(r"\s+")
_SEPARATOR: Final = re.compile(r"[;\n]")
_ENDS: Final = re.compile(r"\s+or\s+|\s*,\s*", re.IGNORECASE)
_CODES: Final = re.compile(r"(\d{1,10})(?:\s*-\s*(\d{1,10}))?")
_TIMES: Final = re.compile(r"(\d{1,10})\s+times?", re.IGNORECASE)
_WORDS: Final[Mapping[str, int]] = {"never": 0, "once": 1, "twice": 2}
_DELAY: Final = re.compile(r"after\s+(\d{1,10})\s*(s|min|h)", re.IGNORECASE)
_SECONDS: Final[Mapping[str, int]] = {"s": 1, "min": 60, "h": 3600}
_SCALED: Final = re.compile(r"([A-Za-z]\w*)\s*(?:\s[xX]|[*×])\s*(\d+(?:\.\d+)?)")
_ASSIGNED: Final = re.compile(r"([A-Za-z]\w*)\s*=\s*(\S.*)")
_ANOTHER_SITE: Final = "another site"
_ALLOWED: Final = (
    "allowed are Name x 1.5, Name = value, another site, after 10 min, once, twice, 3 times, and never"
)


#: What `Memory` in a rule means where a job has no such value in its Requirements.
MEMORY: Final = "Memory"


class RetryRuleError(ValueError):
    """A text that is no rule; the message has the text, and what is allowed."""


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
class ValueChange:
    """A change of one value of a description: another value, or the old one times a factor."""

    name: str
    value: str | int | float = ""
    factor: float | None = None  #: None: the value replaces the old one


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


def split_rules(raw: object) -> list[str]:
    """The texts of rules: members of a list, parts of a text between semicolons, or items of a record."""
    if isinstance(raw, Mapping):
        texts = [f"{ends}: {changes}" for ends, changes in raw.items()]
    elif isinstance(raw, list | tuple):
        texts = [each for part in raw for each in split_rules(part)]
    elif isinstance(raw, str):
        texts = _SEPARATOR.split(raw)
    else:
        raise RetryRuleError(f"{raw!r:.100} is no text, such as '137: Memory x 1.5, twice'")
    return [text for each in texts if (text := _BLANKS.sub(" ", each).strip())]


def read_rules(raw: object) -> tuple[str, ...]:
    """The texts of valid rules, with single blanks; RetryRuleError."""
    texts = tuple(dict.fromkeys(split_rules(raw)))
    if len(texts) > bounds.RETRY_RULES:
        raise RetryRuleError(f"{len(texts)} rules are too many, allowed are {bounds.RETRY_RULES}")
    changes = sum(len(parse_rule(each).values) for each in texts)
    if changes > bounds.RETRY_CHANGES:
        raise RetryRuleError(f"{changes} changed values are too many, allowed are {bounds.RETRY_CHANGES}")
    return texts


@lru_cache(maxsize=1_000)  # the same rules for many jobs
def parse_rule(text: str) -> RetryRule:
    """A rule; RetryRuleError."""
    if len(text) > bounds.RETRY_RULE:
        raise RetryRuleError(f"{text[:20]!r}… has {len(text)} characters, allowed are {bounds.RETRY_RULE}")
    ends, colon, changes = text.partition(":")
    if not colon or not ends.strip() or not changes.strip():
        raise RetryRuleError(f"{text!r}, allowed is 'exit code or reason: changes', {_ALLOWED}")
    rule = RetryRule(text=text)
    for end in _ENDS.split(ends.strip()):
        rule = _add_end(rule, end)
    for change in changes.split(","):
        rule = _add_change(rule, change.strip())
    return rule


def _add_end(rule: RetryRule, end: str) -> RetryRule:
    if codes := _CODES.fullmatch(end):
        low, high = int(codes[1]), int(codes[2] or codes[1])
        if low > high:
            raise RetryRuleError(f"{end!r}: {low} is more than {high}")
        return replace(rule, codes=(*rule.codes, (low, high)))
    known = (*REASONS, ANY_FAILURE)
    if fold(end) not in known:
        meant = did_you_mean(end, known)
        hint = f"did you mean {meant}?" if meant else f"allowed are exit codes, {', '.join(known)}"
        raise RetryRuleError(f"{end!r} is no end of a job, {hint}")
    return replace(rule, reasons=(*rule.reasons, fold(end)))


def _add_change(rule: RetryRule, change: str) -> RetryRule:
    for pattern, add in _CHANGES:
        if found := pattern.fullmatch(change):
            return add(rule, found)
    raise RetryRuleError(f"{change!r} is no change, {_ALLOWED}")


def _add_times(rule: RetryRule, found: re.Match[str]) -> RetryRule:
    word = fold(found[0])
    times = _WORDS[word] if word in _WORDS else int(found[1])
    if times > bounds.RETRIES:
        raise RetryRuleError(f"{format_count(times, 'time')} are too many, allowed are {bounds.RETRIES}")
    return replace(rule, times=times)


def _add_delay(rule: RetryRule, found: re.Match[str]) -> RetryRule:
    seconds = int(found[1]) * _SECONDS[fold(found[2])]
    if seconds > bounds.RETRY_DELAY:
        raise RetryRuleError(f"{found[0]!r} is too long, allowed are {bounds.RETRY_DELAY // 3600} h")
    return replace(rule, delay=seconds)


def _add_factor(rule: RetryRule, found: re.Match[str]) -> RetryRule:
    factor = float(found[2])
    if not 0 < factor <= bounds.RETRY_FACTOR:
        raise RetryRuleError(f"{found[0]!r}: allowed are factors up to {format_value(bounds.RETRY_FACTOR)}")
    return replace(rule, values=(*rule.values, ValueChange(name=found[1], factor=factor)))


def _add_value(rule: RetryRule, found: re.Match[str]) -> RetryRule:
    value = as_number(found[2].strip("\"'"))
    return replace(rule, values=(*rule.values, ValueChange(name=found[1], value=value)))


def _add_elsewhere(rule: RetryRule, _: re.Match[str]) -> RetryRule:
    return replace(rule, is_elsewhere=True)


_CHANGES: Final[Sequence[tuple[re.Pattern[str], Callable[[RetryRule, re.Match[str]], RetryRule]]]] = (
    (re.compile("|".join(_WORDS), re.IGNORECASE), _add_times),
    (_TIMES, _add_times),
    (re.compile(_ANOTHER_SITE, re.IGNORECASE), _add_elsewhere),
    (_DELAY, _add_delay),
    (_SCALED, _add_factor),
    (_ASSIGNED, _add_value),
)
