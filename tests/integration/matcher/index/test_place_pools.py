"""What a process remembers of places: one set of pools for all that have the same."""

from datetime import datetime

from sqlalchemy import Engine

from matcher.index.place_pools import PlaceCache, PlacePools
from taskqueue.db import database
from tests import waiting
from tests.waiting import LONG, SHORT

VOS = frozenset({"lhcb"})


def test_places_with_the_same_pools_share_them_in_memory(engine: Engine, now: datetime) -> None:
    config, places = waiting.grid(), PlaceCache()

    def of_both() -> list[PlacePools]:
        with database.reading_lazily(engine) as reading:
            return [
                places.served(reading, config, queue, VOS, {}, submits=False, age=places.age, now=now)
                for queue in (LONG, SHORT)
            ]

    with database.writing(engine) as conn:
        first = waiting.pool(conn, now, "a" * 64, LONG, SHORT, config=config)
    long, short = of_both()
    assert long.pools is short.pools == {first}
    with database.writing(engine) as conn:
        second = waiting.pool(conn, now, "b" * 64, LONG, SHORT, config=config)
    places.forget(VOS)
    long, short = of_both()
    assert long.pools is short.pools == {first, second}
