"""What a process remembers of places: one set of pools for all that have the same."""

from datetime import datetime

import pytest
from sqlalchemy import Engine

from cs_config.tree.configuration import Configuration
from matcher.index import place_pools
from matcher.index.place_pools import MappingVersions, PlaceCache, PlacePools
from taskqueue.db import database
from tests.support import databases
from tests.support.factories import queued_jobs
from tests.support.factories.queued_jobs import LONG, SHORT

VOS = frozenset({"lhcb"})


def _read(engine: Engine, places: PlaceCache, config: Configuration, now: datetime) -> list[PlacePools]:
    """Two places, in one transaction."""
    versions: MappingVersions = {}
    with database.reading_lazily(engine) as reading:
        return [
            places.served(
                *(reading, config, queue, VOS, {}),
                submits=False,
                versions=versions,
                age=places.age,
                now=now,
            )
            for queue in (LONG, SHORT)
        ]


def test_places_with_the_same_pools_share_them_in_memory(engine: Engine, now: datetime) -> None:
    config, places = queued_jobs.grid(), PlaceCache()

    def of_both() -> list[PlacePools]:
        return _read(engine, places, config, now)

    first = queued_jobs.pool(engine, now, "a" * 64, LONG, SHORT, config=config)
    long, short = of_both()
    assert long.pools is short.pools == {first}
    second = queued_jobs.pool(engine, now, "b" * 64, LONG, SHORT, config=config)
    places.forget(VOS)
    long, short = of_both()
    assert long.pools is short.pools == {first, second}


def test_cached_places_have_so_many_ids_of_pools_and_no_more(
    engine: Engine, now: datetime, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(place_pools, "MOST_IDS", 3)
    config, places = queued_jobs.grid(), PlaceCache()
    with database.writing(engine) as conn:
        for digest in "abcd":
            queued_jobs.pool(conn, now, digest * 64, LONG, SHORT, config=config)
    for _ in range(2):
        assert [len(each.pools) for each in _read(engine, places, config, now)] == [4, 4]
        assert len(places._cached) == 1


def test_the_version_of_the_mapping_is_read_once_for_all_places(engine: Engine, now: datetime) -> None:
    config = queued_jobs.grid()
    queued_jobs.pool(engine, now, "a" * 64, LONG, SHORT, config=config)
    statements = databases.record_statements(engine)
    _read(engine, PlaceCache(), config, now)
    assert len([each for each in statements if "config_version" in each]) == 1
