"""Claims for a batch in steps, each of which is committed: so none fails for what another does."""

from collections.abc import Callable, Sequence
from datetime import datetime

from sqlalchemy import Engine
from sqlalchemy.exc import DBAPIError

from cs_config.configuration import Configuration
from matcher import claiming, claiming_counted, claiming_quickly, gates
from matcher.claiming import Look, Wish
from matcher.doubts import Doubts
from matcher.errors import Unserved
from matcher.requests import MatchRequest
from requirements.errors import PilotageError
from taskqueue import database
from taskqueue.single_statements import SingleStatements

#: What became of wishes, by the identity of their requests.
Found = dict[int, Look | PilotageError]
_Way = Callable[[Sequence[Wish], Configuration, datetime], dict[int, Look]]


class Claims:
    """Of one process; used by the thread that claims."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._server = SingleStatements(engine)
        self.doubts = Doubts()  #: what may have been claimed for nobody

    def make(self, wishes: Sequence[Wish], *, config: Configuration, now: datetime) -> Found:
        """Claim for all of them; those first who cannot take just any job.

        What one step claimed has to be delivered, whatever becomes of the next.
        """
        ways: dict[_Way, list[Wish]] = {self._step_by_step: [], self._counted: [], self._quickly: []}
        for wish in wishes:
            ways[self._way(wish, config)].append(wish)
        steps = [*ways.items(), (self._step_by_step, [*ways[self._counted], *ways[self._quickly]])]
        found: Found = {}
        for claim, some in steps:
            left = [wish for wish in some if id(wish.request) not in found]
            try:
                found |= claim(left, config, now) if left else {}
            except Exception as error:  # whatever it is
                if not found:
                    raise
                return {id(wish.request): Unserved(error) for wish in wishes} | found
        return found

    def _way(self, wish: Wish, config: Configuration) -> _Way:
        """Where one statement may claim for it, together with others; SQLite has no such statement."""
        if not wish.is_single or self._engine.dialect.name == "sqlite":
            return self._step_by_step
        return self._counted if wish.counted or gates.counts(config, wish.place) else self._quickly

    def _counted(self, wishes: Sequence[Wish], config: Configuration, now: datetime) -> dict[int, Look]:
        maybe: list[tuple[MatchRequest, tuple[str, ...]]] = []
        try:
            with self.doubts.about(maybe), database.writing(self._engine) as conn:
                looks = claiming_counted.claim(conn, wishes, config=config, now=now)
                maybe += (
                    (wishes[number].request, tuple(each.lease for each in look.claimed))
                    for number, look in looks.items()
                )
        except DBAPIError as error:
            if database.is_away(error):
                raise
            for wish in wishes:
                wish.drawn.start_over()
            return {}
        return {id(wishes[number].request): look for number, look in looks.items()}

    def _quickly(self, wishes: Sequence[Wish], _config: Configuration, now: datetime) -> dict[int, Look]:
        looks = claiming_quickly.claim(self._server, wishes, self.doubts, now=now)
        return {id(wishes[number].request): look for number, look in looks.items()}

    def _step_by_step(self, wishes: Sequence[Wish], config: Configuration, now: datetime) -> dict[int, Look]:
        maybe: list[tuple[MatchRequest, tuple[str, ...]]] = []
        with self.doubts.about(maybe), database.writing(self._engine) as conn:
            looks = claiming.claim_all(conn, wishes, config=config, now=now)
            maybe += (
                (wish.request, tuple(each.lease for each in look.claimed))
                for wish, look in zip(wishes, looks, strict=True)
            )
        return {id(wish.request): wish.told(look) for wish, look in zip(wishes, looks, strict=True)}
