"""Answers to requests for jobs: counted in memory by place, VOs and answer, stored once a minute."""

from collections import Counter
from collections.abc import Callable, Mapping
from datetime import datetime
from itertools import islice
from typing import Final, TypeAlias

from sqlalchemy import Engine

from cs_config.tree.address import QueueAddress
from cs_config.tree.configuration import Configuration
from matcher.claim.matcher import Matcher
from matcher.pauses import no_pause
from requirements.resource import Location, StatedResource
from taskqueue import day_record
from taskqueue.day_record import Seen, Series, Subject
from taskqueue.db import database

#: Places, VOs and answers of one process and minute; what comes beyond them is not recorded.
_MOST: Final = 20_000
#: Of them stored in one transaction.
_AT_ONCE: Final = 100


#: A place that a request states.
Place: TypeAlias = Location | StatedResource
#: Site, CE, queue, VOs and answer.
_Answer: TypeAlias = tuple[str, str, str, frozenset[str], str]


class AnswerRecorder:
    """The answers of one process; `store` is for one thread at a time.

    What was answered since the last `store` is lost if the process is killed.
    """

    def __init__(self, engine: Engine, matcher: Matcher) -> None:
        self._engine = engine
        self._matcher = matcher
        self._answered: Counter[_Answer] = Counter()

    def count(self, place: Place, vos: frozenset[str], answer: str | None, config: Configuration) -> None:
        """Count an answer at one of the configuration's queues, or else sites; None: it has jobs."""
        ce, queue = place.ce, place.queue
        if not config.knows(QueueAddress(site=place.site, ce=ce, queue=queue)):
            ce = queue = ""
        key = place.site, ce, queue, vos, answer or day_record.MATCHED
        if key in self._answered or (len(self._answered) < _MOST and place.site in config.sites):
            self._answered[key] += 1

    def store(self, pause: Callable[[], None] = no_pause) -> None:
        """Add what was answered since the last time to this minute; what cannot be stored is kept."""
        answered, self._answered = self._answered, Counter()
        left = dict(answered)  # in one step: an answer under way may still add to it
        now = self._matcher.now()
        while numbers := dict(islice(left.items(), _AT_ONCE)):
            try:
                self._add(numbers, now)
            except database.UNAVAILABLE:
                self._answered.update(left)
                raise
            for key in numbers:
                del left[key]
            pause()

    def _add(self, numbers: Mapping[_Answer, int], now: datetime) -> None:
        with database.writing(self._engine) as conn:
            day_record.add_counts(
                conn,
                (
                    Seen(series=Series.ANSWERS, subject=_name_subject(key), at=now, value=number)
                    for key, number in numbers.items()
                ),
            )


def _name_subject(key: _Answer) -> Subject:
    site, ce, queue, vos, answer = key
    return site, ce, queue, ",".join(sorted(vos)), answer
