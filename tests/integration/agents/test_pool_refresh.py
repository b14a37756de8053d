"""A refresh of a VO's pools, beside others who write meanwhile."""

import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import datetime, timedelta
from functools import partial
from typing import ClassVar

import pytest
from sqlalchemy import Connection, Engine, select, update

from agents import pools as pool_agent
from agents.leader import Leadership
from cs_config.classes.queue_class_index import QueueClassIndex, eligible_classes
from cs_config.classes.queue_classes import queue_classes as configured_classes
from cs_config.classes.queue_columns import EligibleSets
from cs_config.tree.configuration import Configuration
from optimizers.chain import batch
from requirements import canonical
from requirements.canonical import Requirements, pool_id
from requirements.classad.expression import Expression
from requirements.record import Record
from taskqueue.db import database
from taskqueue.pools import pools as pool_mapping
from taskqueue.pools import queue_class_store
from taskqueue.pools.queue_class_store import RefreshState
from taskqueue.schema.tables import queue_class_versions
from taskqueue.schema.tables import queue_classes as queue_classes_table
from tests.support import concurrency
from tests.support.factories import stored_rows
from tests.support.factories.submitted_jobs import enqueue, grid, submit

_NUMBERS = range(12)
_SAID = ("", "", "", ", Disk: 20", ", Tag: [gpu]", ", NodeAttributes: {Disk: [5, 20]}")
_ASKED: tuple[Requirements, ...] = (
    *(Record(values=(("Memory", memory),)) for memory in (1000, 3000, 5000, 9000)),
    Expression(text="other.Memory >= 2000 && other.Memory < 6000"),
    Expression(text="other.Disk > 10 || other.Memory == 4000"),
    Expression(text='member("gpu", other.Tag)'),
)


def tree(memories: dict[int, int], version: int, *, more: str = "") -> Configuration:
    lines = [f"            q{number}: {{Memory: {memory}{more}}}" for number, memory in memories.items()]
    head = ["Resources:", "  Sites:", "    A.B.ch:", "      CEs:", "        ce:", "          Queues:"]
    return grid("\n".join([*head, *lines, "Registry: {VO: {lhcb: {}}}", ""]), version)


def touch(conn: Connection, asked: Requirements, now: datetime) -> None:
    stored_rows.touch_pool(
        conn,
        pool_id=pool_id(asked, "lhcb"),
        vo="lhcb",
        requirements_json=canonical.canonical(asked, "lhcb").decode(),
        original_json=canonical.to_json(asked),
        now=now,
    )


def bring(engine: Engine, asked: Requirements, now: datetime) -> None:
    """A pool that is not mapped yet."""
    with database.writing(engine) as conn:
        touch(conn, asked, now)


def bring_job(engine: Engine, config: Configuration, now: datetime) -> None:
    """A job whose pool is new, and mapped with this version of the configuration."""
    asked = {"Executable": "a.sh", "Requirements": {"Memory": 3000}}
    enqueue(engine, config, now, asked)


def cycle(engine: Engine, config: Configuration, now: datetime) -> pool_agent.PoolResult:
    result = pool_agent.cycle(engine, config, now=now, holder="me")
    assert result is not None
    return result


def wrong(engine: Engine, config: Configuration, asked: tuple[Requirements, ...]) -> list[Requirements]:
    """The pools whose stored queues are not those that the rules give."""
    with database.reading(engine) as conn:
        return [
            each
            for each in asked
            if set(stored_rows.list_eligible_queues(conn, pool_id(each, "lhcb")))
            != {queue for found in eligible_classes(config, "lhcb", each) for queue in found.queues}
        ]


def standing(engine: Engine) -> RefreshState:
    with database.reading(engine) as conn:
        return queue_class_store.read_states(conn)["lhcb"]


@pytest.mark.parametrize("seed", range(3))
def test_after_every_change_pools_are_mapped_to_what_the_rules_give(
    engine: Engine, now: datetime, seed: int
) -> None:
    draw, began = random.Random(seed), now
    memories = {number: 1000 * draw.randint(1, 10) for number in _NUMBERS}
    for version in range(1, 25):
        now += timedelta(seconds=1)
        if version <= len(_ASKED):
            bring(engine, _ASKED[version - 1], now)
        more = draw.choice(_SAID)
        config = tree(memories, version, more=more)
        cycle(engine, config, now)
        assert wrong(engine, config, _ASKED[:version]) == []
        assert standing(engine).is_of((version, 0), refreshed_after=began)
        with database.reading(engine) as conn:  # what nobody has is gone, so that its slot may be given
            assert queue_class_store.read_slots(conn, "lhcb").keys() == {
                each.digest for each in configured_classes(config, "lhcb")
            }
        for number in draw.sample(_NUMBERS, draw.choice((0, 1, 1, 3))):
            memories.pop(number, None)
            if draw.random() < 0.8:
                memories[number] = 1000 * draw.randint(1, 10)


@pytest.fixture
def resolved(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The pools that are resolved, also where the cache knows them."""
    found: list[str] = []
    resolve = QueueClassIndex.resolve_pool

    def count(index: QueueClassIndex, pool: str, requirements: Requirements) -> EligibleSets:
        found.append(pool)
        return resolve(index, pool, requirements)

    monkeypatch.setattr(QueueClassIndex, "resolve_pool", count)
    return found


def test_a_version_with_the_same_queue_classes_advances_and_resolves_no_pool(
    engine: Engine, now: datetime, resolved: list[str]
) -> None:
    bring(engine, _ASKED[0], now)
    bring(engine, _ASKED[1], now)
    cycle(engine, tree({0: 4000, 1: 9000}, 1), now)
    assert len(resolved) == 2
    same = tree({0: 4000, 1: 9000, 2: 9000}, 2)  # a second queue of the class
    later = now + timedelta(seconds=1)
    bring(engine, _ASKED[2], later)
    assert cycle(engine, same, later).resolved == 1
    assert resolved[2:] == [pool_id(_ASKED[2], "lhcb")]
    assert standing(engine).is_of((2, 0), refreshed_after=now)
    with database.reading(engine) as conn:
        assert pool_mapping.get_pool(conn, pool_id(_ASKED[0], "lhcb")).config_version == 2
    resolved.clear()
    assert wrong(engine, same, _ASKED[:3]) == []
    changed = tree({0: 4000, 1: 2000, 2: 9000}, 3)
    assert cycle(engine, changed, later).resolved == 3
    assert len(resolved) == 3
    assert wrong(engine, changed, _ASKED[:3]) == []


def test_other_declarations_resolve_all_pools_again(engine: Engine, now: datetime) -> None:
    queues = "Resources: {Sites: {A.B.ch: {CEs: {ce: {Queues: {a: {Memory: 4000, Disk: 10}}}}}}}\n"
    bring(engine, _ASKED[0], now)
    cycle(engine, grid(queues, 1), now)
    declared = "{JobDescription: {Memory: {type: number, resource: Disk}}}"
    other = grid(f"{queues}Operations: {{lhcb: {declared}}}\n", 2)
    assert cycle(engine, other, now).changed == 1
    assert wrong(engine, other, _ASKED[:1]) == []


@pytest.mark.parametrize(
    "versions",
    [(1, 1, 1, 1), (1, 2, 3, 4), (1, 2, 2, 2)],
    ids=["one version", "versions with the same queue classes", "one more version with the same"],
)
def test_mappings_get_no_older_than_the_interval(
    engine: Engine, now: datetime, resolved: list[str], versions: tuple[int, ...]
) -> None:
    bring(engine, _ASKED[0], now)
    for version, seconds in zip(versions, (0, 600, 900, 901), strict=True):
        at = now + timedelta(seconds=seconds)
        cycle(engine, tree({0: 4000}, version), at)
        assert (len(resolved), standing(engine).refreshed_at) == ((2, at) if seconds > 900 else (1, now))


def test_what_another_process_refreshed_meanwhile_is_computed_anew(
    engine: Engine, now: datetime, resolved: list[str]
) -> None:
    bring(engine, _ASKED[0], now)
    cycle(engine, tree({0: 4000}, 1), now)
    mine = pool_agent._latest.pop(engine)
    cycle(engine, tree({0: 500}, 2), now)  # as another process
    pool_agent._latest[engine] = mine
    assert cycle(engine, tree({0: 4000}, 3), now).changed == 1
    assert len(resolved) == 3
    assert wrong(engine, tree({0: 4000}, 3), _ASKED[:1]) == []


class Interrupted(Leadership):
    """A turn in which something happens between the computation and the storing."""

    do: ClassVar[Callable[[], object]]

    @contextmanager
    def writing(self) -> Iterator[Connection]:
        type(self).do()
        with database.writing(self.engine) as conn:
            yield conn


def refresh_while(
    engine: Engine, config: Configuration, now: datetime, do: Callable[[], object]
) -> dict[str, pool_mapping.MappingChange]:
    """A refresh of all pools that is interrupted."""
    Interrupted.do = staticmethod(do)
    mine = Interrupted(engine=engine, name="pools", fence=0, now=now, last=None)
    return dict(pool_agent.refresh_vo(mine, config, "lhcb", whole=True))


@pytest.mark.parametrize("memory", [4000, 2000], ids=["of the same queue classes", "of others"])
def test_a_pool_that_comes_with_the_old_version_while_the_new_is_computed_advances_with_the_others(
    engine: Engine, now: datetime, memory: int
) -> None:
    older, newer = tree({0: 4000, 1: 9000}, 1), tree({0: memory, 1: 9000}, 2)
    bring(engine, _ASKED[0], now)
    cycle(engine, older, now)

    changed = refresh_while(engine, newer, now, partial(bring_job, engine, older, now))
    assert (changed == {}) is (memory == 4000)
    with database.reading(engine) as conn:
        assert pool_mapping.get_pool(conn, pool_id(_ASKED[1], "lhcb")).config_version == 2
    assert wrong(engine, newer, _ASKED[:2]) == []


def test_a_pool_that_goes_and_comes_back_meanwhile_is_corrected_with_the_others(
    engine: Engine, now: datetime, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is unmapped when it is listed, gone when its requirements are read, and mapped in the end."""
    older, newer = tree({0: 2000, 1: 9000}, 1), tree({0: 5000, 1: 9000}, 2)
    bring(engine, _ASKED[0], now)
    cycle(engine, older, now)
    monkeypatch.setattr(pool_mapping, "list_unmapped", lambda *_: [pool_id(_ASKED[1], "lhcb")])

    refresh_while(engine, newer, now, partial(bring_job, engine, older, now))
    assert wrong(engine, newer, _ASKED[:2]) == []


def test_who_was_overtaken_while_computing_writes_nothing_and_the_next_cycle_does(
    engine: Engine, now: datetime
) -> None:
    first, second, third = (tree({0: memory}, number) for number, memory in enumerate((4000, 500, 6000), 1))
    bring(engine, _ASKED[1], now)
    cycle(engine, first, now)
    assert refresh_while(engine, third, now, lambda: cycle(engine, second, now)) == {}
    assert standing(engine).version == (2, 0)
    assert wrong(engine, second, _ASKED[1:2]) == []
    cycle(engine, third, now)
    assert wrong(engine, third, _ASKED[1:2]) == []


def test_what_a_process_of_the_release_before_has_mapped_is_computed_anew(
    engine: Engine, now: datetime
) -> None:
    """It notes nothing for the VO, and one that came meanwhile stays at the version before."""
    older, newer = tree({0: 4000}, 1), tree({0: 500}, 2)
    bring(engine, _ASKED[1], now)
    cycle(engine, older, now)
    with database.writing(engine) as conn:
        classes = configured_classes(newer, "lhcb")
        queue_class_store.store_classes(conn, vo="lhcb", config_version=2, classes=classes, now=now)
    assert not standing(engine).is_of((2, 0), refreshed_after=now)
    assert cycle(engine, newer, now).resolved == 1
    assert wrong(engine, newer, _ASKED[1:2]) == []


def pretend_another_release(engine: Engine) -> None:
    """Leave the queue classes as a release leaves them that computes digests by another rule."""
    with database.writing(engine) as conn:
        digests = conn.execute(select(queue_classes_table.c.digest)).scalars().all()
        for digest in digests:
            conn.execute(
                update(queue_classes_table)
                .where(queue_classes_table.c.digest == digest)
                .values(digest=digest[::-1])
            )
        conn.execute(update(queue_class_versions).values(algorithm=99))


def test_queue_classes_of_another_release_are_computed_anew_with_all_mappings(
    engine: Engine, now: datetime, caplog: pytest.LogCaptureFixture
) -> None:
    config = tree({0: 4000, 1: 9000}, 1)
    bring(engine, _ASKED[0], now)
    cycle(engine, config, now)
    pretend_another_release(engine)
    [job_id] = submit(engine, config, now, {"Executable": "a.sh", "Requirements": {"Memory": 3000}})
    assert batch.optimize(engine, config, [job_id], now=now).waiting == (job_id,)
    assert not standing(engine).is_ours
    assert cycle(engine, config, now).resolved == 2
    assert "by another release" in caplog.text
    assert standing(engine).is_of((1, 0), refreshed_after=now)
    assert wrong(engine, config, _ASKED[:2]) == []
    with database.reading(engine) as conn:
        assert len(queue_class_store.read_slots(conn, "lhcb")) == 2


def test_a_newer_version_is_not_taken_for_a_few_changes_of_what_another_release_stored(
    engine: Engine, now: datetime
) -> None:
    older, newer = tree({0: 4000, 1: 9000}, 1), tree({0: 4000, 1: 8000}, 2)
    bring(engine, _ASKED[0], now)
    bring(engine, _ASKED[3], now)
    cycle(engine, older, now)
    pretend_another_release(engine)
    cycle(engine, newer, now)
    assert wrong(engine, newer, (_ASKED[0], _ASKED[3])) == []


def test_a_queue_class_that_nobody_stored_leaves_the_pool_to_the_agent_which_does_not_fail_in_silence(
    engine: Engine, now: datetime, caplog: pytest.LogCaptureFixture
) -> None:
    """As after a restore, when another text has got the number of a version."""
    stored_one, ours = tree({0: 4000}, 1), tree({0: 5000}, 1)
    bring(engine, _ASKED[0], now)
    cycle(engine, stored_one, now)
    [job_id] = submit(engine, ours, now, {"Executable": "a.sh", "Requirements": {"Memory": 3000}})
    assert batch.optimize(engine, ours, [job_id], now=now).waiting == (job_id,)
    with database.reading(engine) as conn:
        assert pool_mapping.list_unmapped(conn, "lhcb") == [pool_id(_ASKED[1], "lhcb")]
    cycle(engine, ours, now)
    assert caplog.text == ""
    cycle(engine, ours, now)
    assert "could not be mapped 2 times in a row" in caplog.text
    cycle(engine, tree({0: 5000}, 2), now)
    assert wrong(engine, tree({0: 5000}, 2), _ASKED[:2]) == []


@pytest.mark.parametrize(
    ("wrong_one", "right_one", "asked"),
    [
        ("Memory: [4000]", "Memory: 4000", _ASKED[0]),
        ("OS: centos", "OS: CentOS", Expression(text='other.OS =?= "CentOS"')),
        ("Soft: App1", "Soft: [App1]", Expression(text='member("App1", other.Soft)')),
        ("N: 5", "N: 5.0", Expression(text="other.N / 2 == 2.5")),
    ],
)
def test_a_queue_that_is_corrected_is_mapped_as_it_is_now(
    engine: Engine, now: datetime, wrong_one: str, right_one: str, asked: Requirements
) -> None:
    def said(text: str, version: int) -> Configuration:
        queues = f"{{Queues: {{a: {{{text}}}, b: {{{wrong_one}}}}}}}"
        return grid(f"Resources: {{Sites: {{A.B.ch: {{CEs: {{ce: {queues}}}}}}}}}", version)

    bring(engine, asked, now)
    cycle(engine, said(wrong_one, 1), now)
    assert cycle(engine, said(right_one, 2), now).changed == 1
    with database.reading(engine) as conn:
        assert [str(each) for each in stored_rows.list_eligible_queues(conn, pool_id(asked, "lhcb"))] == [
            "A.B.ch/ce/a"
        ]
    assert wrong(engine, said(right_one, 2), (asked,)) == []


def test_a_refresh_does_not_wait_for_jobs_of_pools_that_are_mapped(engine: Engine, now: datetime) -> None:
    older, newer = tree({0: 4000}, 1), tree({0: 500}, 2)
    bring(engine, _ASKED[1], now)
    cycle(engine, older, now)

    def arrive(conn: Connection) -> None:
        touch(conn, _ASKED[1], now)

    # PostgreSQL locks the pool's row only, SQLite has one writer.
    waits = engine.dialect.name == "sqlite"
    assert concurrency.meanwhile(engine, arrive, lambda: cycle(engine, newer, now), waits=waits).changed == 1
    assert wrong(engine, newer, _ASKED[1:2]) == []
