"""Claims for a batch in steps, each of which is committed: so none fails for what another does."""

from collections.abc import Callable, Sequence
from datetime import datetime

from sqlalchemy import Engine

from cs_config.configuration import Configuration
from matcher import claiming, claiming_quickly, gates
from matcher.claiming import Look, Wish
from matcher.doubts import Doubts
from matcher.errors import Unserved
from matcher.requests import MatchRequest
from requirements.errors import PilotageError
from taskqueue import database
from taskqueue.single_statements import SingleStatements

#: What became of wishes, by the identity of their requests.
Found = dict[int, Look | PilotageError]


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
        plain: list[Wish] = []
        others: list[Wish] = []
        for wish in wishes:
            (plain if self._is_plain(wish, config) else others).append(wish)
        steps: Sequence[tuple[Callable[..., dict[int, Look]], Sequence[Wish]]] = (
            (self._step_by_step, others),
            (self._quickly, plain),
            (self._step_by_step, plain),
        )
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

    def _is_plain(self, wish: Wish, config: Configuration) -> bool:
        """Whether one statement may claim for it, together with others; SQLite has no such statement."""
        return (
            wish.is_plain and self._engine.dialect.name != "sqlite" and not gates.counts(config, wish.place)
        )

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
