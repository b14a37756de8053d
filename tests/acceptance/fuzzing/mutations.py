"""Mutations of good inputs, the same for the same seed, and shorter inputs with the same flaw."""

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass

#: Characters of an input, and trials to shorten one.
_LONGEST, _TRIALS = 20_000, 300

#: What parsers have stumbled over: numbers, quotes, control and wide characters, deep and long things.
_PLAIN = """
0 -1 1e999 -0.0 0x10 077 99999999999999999999 1e-400 NaN inf .5. 1_0 null true ~ yes undefined error
|| && == =?= =!= ; , : | > // /* # --- ... &a *a << ? ! " ' \"\"\" \\ \\x41 \\777 \\u0000 ../.. /etc/passwd
regexp( eval( random( time() userHome( ifThenElse( strcat( substr( MY. other. ${PATH} %(x)s %s%n {events}
Requirements Parameters ParameterStart Owner Site VO InputSandbox __class__ %YAML !!python/object:os.system
"""
WORDS = (
    *_PLAIN.split(),
    *("\x00", "\x1b[31m", "\r", "\r\n", "\n", "\u2028", "\ufeff", "\u202e", "\U0010ffff", "\ud800"),
    *("é", "e\u0301", "ﬀ", "İ", "١", "a" * 5000, "(" * 300, "[" * 300, "{" * 300),
    *("!" * 400, "- " * 300, "1+" * 400, "a.b." * 200, " ? " * 50, "{\n" * 100),
)


@dataclass(frozen=True)
class Flaw:
    """An input that did harm."""

    where: str
    number: int
    text: str
    problem: str

    def __str__(self) -> str:
        size = f"{len(self.text)} characters"
        return f"{self.where}, input {self.number}: {self.problem}: {self.text[:300]!r} ({size})"


def roll(seed: int, where: str, number: int) -> random.Random:
    """The dice of one input, so that it can be made again without those before it."""
    return random.Random(f"{seed} {where} {number}")


def mutate(dice: random.Random, seeds: Sequence[str]) -> str:
    """A good input with some changes."""
    text = dice.choice(seeds)
    for _ in range(dice.choice((1, 1, 2, 3, 8))):
        text = _change(dice, text, seeds)[:_LONGEST]
    return text


def _change(dice: random.Random, text: str, seeds: Sequence[str]) -> str:
    """Insert, replace, remove, repeat, change a character, join with another input, or cut."""
    at = dice.randint(0, len(text))
    end = min(len(text), at + dice.randint(0, 40))
    kind = dice.randrange(7)
    if kind == 0:
        return text[:at] + dice.choice(WORDS) + text[at:]
    if kind == 1:
        return text[:at] + dice.choice(WORDS) + text[end:]
    if kind == 2:
        return text[:at] + text[end:]
    if kind == 3:
        return text[:at] + text[at:end] * dice.choice((2, 5, 50)) + text[end:]
    if kind == 4:
        return text[:at] + chr(dice.randrange(dice.choice((128, 256, 0x11000)))) + text[at + 1 :]
    if kind == 5:
        return text[:end] + dice.choice(seeds)[at:]
    return text[:at]


def shorten(text: str, find: Callable[[str], str | None]) -> str:
    """A short input with the same kind of problem, which `find` names; None: no problem."""
    problem, size, trials = find(text), len(text) // 2, 0
    while problem is not None and size and trials < _TRIALS:
        at = 0
        while at < len(text) and trials < _TRIALS:
            shorter, trials = text[:at] + text[at + size :], trials + 1
            if find(shorter) == problem:
                text = shorter
            else:
                at += size
        size //= 2
    return text
