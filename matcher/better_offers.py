"""What a queue could offer to run more jobs: what they wish of it, put together."""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from matcher.wishes import Wish
from taskqueue.waiting_classes import WaitingClass

#: Offers that are told.
_MOST = 10


@dataclass(frozen=True, slots=True, kw_only=True)
class BetterOffer:
    """What the queue could offer, and the jobs that it could run then besides."""

    text: str
    gains: int
    vos: tuple[str, ...]  #: whose jobs


def of(wishes: Iterable[tuple[Wish, WaitingClass]]) -> list[BetterOffer]:
    """The offers that fulfil most wishes of one queue, each with the class that has it; best gain first."""
    by_text: defaultdict[str, list[tuple[Wish, WaitingClass]]] = defaultdict(list)
    for each in wishes:
        by_text[each[0].text].append(each)
    found = [offer for members in by_text.values() for offer in _alike(members)]
    return sorted(found, key=lambda each: (-each.gains, each.text))[:_MOST]


def _alike(members: Sequence[tuple[Wish, WaitingClass]]) -> Iterator[BetterOffer]:
    """One offer; where it is a number, the nearest step and the one that serves all."""
    numbers = sorted({wished.number for wished, _ in members if wished.number is not None})
    if not numbers:
        yield _offer(members[0][0].text.format(), [each for _, each in members])
    for number in dict.fromkeys(numbers[:1] + numbers[-1:]):
        served = [each for wished, each in members if wished.number is not None and wished.number <= number]
        yield _offer(members[0][0].text.format(number=f"{number:.15g}"), served)


def _offer(text: str, served: Sequence[WaitingClass]) -> BetterOffer:
    vos = tuple(sorted({each.asked.vo for each in served}))
    return BetterOffer(text=text, gains=sum(each.jobs for each in served), vos=vos)
