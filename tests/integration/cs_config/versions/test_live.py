import logging
from collections.abc import Callable
from datetime import datetime

import pytest
from sqlalchemy import Connection, Engine, update

from cs_config import validate
from cs_config.errors import ConfigError, one_problem
from cs_config.tree.configuration import Configuration
from cs_config.versions import store as versions_store
from cs_config.versions.store import LiveConfiguration
from cs_config.versions.tables import config_versions
from taskqueue.db import database
from tests.support import databases

TEXT = "Resources: {Sites: {S: {MaxRAM: %d, CEs: {C: {Queues: {Q: }}}}}}\n"


def store(engine: Engine, text: str, now: datetime) -> int:
    with database.writing(engine) as conn:
        return versions_store.store_text(
            conn, text, author="a", message="", source="api", expected=None, now=now
        )


def refresh(live: LiveConfiguration, engine: Engine) -> bool:
    with database.reading(engine) as conn:
        return live.refresh(conn)


def test_before_anything_is_stored_there_is_an_empty_configuration(engine: Engine) -> None:
    live = LiveConfiguration()
    assert not refresh(live, engine)
    assert live.current.version == 0
    assert live.current.addresses == ()


def test_a_new_version_is_taken_at_the_next_look(engine: Engine, now: datetime) -> None:
    live = LiveConfiguration()
    store(engine, TEXT % 1, now)
    assert refresh(live, engine)
    before = live.current
    assert not refresh(live, engine)
    assert live.current is before
    store(engine, TEXT % 2, now)
    assert refresh(live, engine)
    assert live.current.version == 2
    assert before.values(before.addresses[0], "cms") == {"MaxRAM": 1}


def test_a_version_that_cannot_be_read_leaves_the_running_one(
    engine: Engine, now: datetime, caplog: pytest.LogCaptureFixture
) -> None:
    loads = []

    def load(conn: Connection, version: int, earlier: Configuration) -> Configuration:
        loads.append(version)
        if version == 2:
            raise one_problem("Resources", "made by a newer release")
        return versions_store.load_version(conn, version, earlier)

    live = LiveConfiguration(load)
    store(engine, TEXT % 1, now)
    refresh(live, engine)
    store(engine, TEXT % 2, now)
    with caplog.at_level(logging.WARNING):
        assert not refresh(live, engine)
        assert not refresh(live, engine)
    assert live.current.version == 1
    assert live.problem == "Resources: made by a newer release"
    assert loads == [1, 2], "a version does not change: it is tried once"
    assert [record.message for record in caplog.records] == [
        "configuration 2 cannot be read, 1 stays: Resources: made by a newer release"
    ]
    store(engine, TEXT % 3, now)
    assert refresh(live, engine)
    assert live.current.version == 3
    assert live.problem is None


def _load_before(
    first_unreadable: int, loads: list[int]
) -> Callable[[Connection, int, Configuration], Configuration]:
    def load(conn: Connection, version: int, earlier: Configuration) -> Configuration:
        loads.append(version)
        if version >= first_unreadable:
            raise one_problem("Resources", "made by a newer release")
        return versions_store.load_version(conn, version, earlier)

    return load


def test_a_process_that_starts_beside_a_later_release_has_the_newest_version_that_it_can_read(
    engine: Engine, now: datetime
) -> None:
    for number in range(1, 5):
        store(engine, TEXT % number, now)
    databases.execute(engine, update(config_versions).where(config_versions.c.version == 2).values(text=None))
    loads: list[int] = []
    live = LiveConfiguration(_load_before(3, loads))
    assert refresh(live, engine)
    assert not refresh(live, engine)
    assert (live.current.version, loads) == (1, [4, 3, 2, 1])
    assert live.problem == "Resources: made by a newer release"
    live = LiveConfiguration(_load_before(4, loads))
    assert refresh(live, engine)
    assert live.current.version == 3


def test_a_process_that_can_read_no_version_does_not_work_with_an_empty_one(
    engine: Engine, now: datetime
) -> None:
    store(engine, TEXT % 1, now)
    live = LiveConfiguration(_load_before(1, []))
    for _ in range(2):
        with pytest.raises(ConfigError, match="made by a newer release"):
            refresh(live, engine)


def test_a_version_that_this_process_has_stored_is_not_read_again(engine: Engine, now: datetime) -> None:
    loads: list[int] = []
    live = LiveConfiguration(_load_before(9, loads))
    made = validate.parse(TEXT % 1, "api").stored_as(store(engine, TEXT % 1, now), "a")
    with database.reading(engine) as conn:
        assert live.refresh(conn, made)
        assert not live.refresh(conn)
        read = versions_store.load_version(conn)
    assert live.current is made
    assert loads == []
    for name in ("version", "source", "file", "origins", "author", "tree", "warnings", "kept_values"):
        assert getattr(made, name) == getattr(read, name)


def test_of_a_stored_version_that_is_not_the_newest_or_has_another_text_nothing_is_taken(
    engine: Engine, now: datetime
) -> None:
    loads: list[int] = []
    live = LiveConfiguration(_load_before(9, loads))
    older = validate.parse(TEXT % 1, "api").stored_as(store(engine, TEXT % 1, now), "a")
    number = store(engine, TEXT % 2, now)
    with database.reading(engine) as conn:
        assert live.refresh(conn, older)
    other = validate.parse(TEXT % 4, "api").stored_as(store(engine, TEXT % 3, now), "a")
    with database.reading(engine) as conn:
        assert live.refresh(conn, other)
    assert loads == [number, number + 1]
    assert live.current.source == TEXT % 3
