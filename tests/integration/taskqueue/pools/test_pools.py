"""SubmitPools and the queues that they are mapped to, with the races that must not lose anything."""

import itertools
import random
import re
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from datetime import datetime, timedelta
from typing import Any

import pytest
from sqlalchemy import Connection, Engine, column, event, select, table, text, update

from cs_config.classes.queue_classes import QueueClass
from cs_config.classes.queue_columns import EligibleSets
from cs_config.tree.address import QueueAddress
from cs_config.versions.tables import UtcTime
from requirements.bitset import mask_from
from requirements.states import JobStatus
from taskqueue.db import database
from taskqueue.errors import PoolNotFound
from taskqueue.jobs import unmatchable
from taskqueue.pools import listing, mapping, pools, queue_class_store
from taskqueue.pools.pools import NewPool
from taskqueue.pools.queue_class_store import RefreshState
from taskqueue.schema.tables import changes, pool_mappings, queue_class_versions, submit_pools
from taskqueue.sites import scopes
from tests.support import concurrency
from tests.support.factories import stored_rows

HOUR = timedelta(hours=1)
VIEW = table("pool_queues", column("config_version"), column("refreshed_at", UtcTime))
A, B, C = (QueueAddress(site="S", ce="ce", queue=name) for name in "abc")


def _classes(members: Mapping[str, Iterable[QueueAddress]]) -> list[QueueClass]:
    return [QueueClass(digest=name * 64, values={}, queues=tuple(queues)) for name, queues in members.items()]


def _sync(
    conn: Connection, version: int, now: datetime, members: Mapping[str, Iterable[QueueAddress]]
) -> bool:
    return queue_class_store.store_classes(
        conn, vo="lhcb", config_version=version, classes=_classes(members), now=now
    )


def _touch(conn: Connection, pool_id: str, now: datetime) -> bool:
    return stored_rows.touch_pool(
        conn, pool_id=pool_id, vo="lhcb", requirements_json="{}", original_json="{}", now=now
    )


def _resolve(
    conn: Connection, pool_id: str, version: int, names: str, now: datetime
) -> pools.MappingChange | None:
    digests = [name * 64 for name in names]
    return stored_rows.store_pool_mapping(
        conn, pool_id=pool_id, config_version=version, queue_class_digests=digests, now=now
    )


def _changes(conn: Connection) -> int:
    return len(conn.execute(select(changes.c.change_id).where(changes.c.kind == "mapping")).all())


def test_a_pool_is_stored_once_and_stays_unresolved_until_it_is_resolved(
    engine: Engine, now: datetime
) -> None:
    with database.writing(engine) as conn:
        assert _touch(conn, "p", now)
        assert _touch(conn, "p", now + HOUR)
        pool = pools.get_pool(conn, "p")
        assert (pool.created_at, pool.last_used_at, pool.refreshed_at) == (now, now + HOUR, None)
        _sync(conn, 1, now, {"x": [A]})
        _resolve(conn, "p", 1, "x", now)
        assert not _touch(conn, "p", now)


def test_many_pools_are_touched_at_once(engine: Engine, now: datetime) -> None:
    new = [NewPool(pool_id=f"{n:04}", vo="lhcb", requirements="{}", original="{}") for n in range(1500)]
    with database.writing(engine) as conn:
        assert pools.touch_pools(conn, [*new, *new], now=now) == {pool.pool_id for pool in new}
        assert pools.touch_pools(conn, [], now=now) == frozenset()
        first = listing.list_pools(conn, listing.PoolFilter(vos={"lhcb"}), limit=1000)
        rest = listing.list_pools(conn, listing.PoolFilter(vos={"lhcb"}), limit=1000, after=first[-1].pool_id)
        assert [pool.pool_id for pool in first + rest] == [pool.pool_id for pool in new]
        assert listing.list_pools(conn, listing.PoolFilter(vos={"cms"}), limit=10) == []


def test_a_pool_that_does_not_exist_is_not_found(engine: Engine) -> None:
    with database.reading(engine) as conn, pytest.raises(PoolNotFound, match="pool p does not exist"):
        pools.get_pool(conn, "p")


def test_the_mapping_is_of_queue_classes_and_the_view_shows_queues(engine: Engine, now: datetime) -> None:
    with database.writing(engine) as conn:
        _sync(conn, 7, now, {"x": [A, B], "y": [C]})
        _touch(conn, "p", now)
        _touch(conn, "q", now)
        _resolve(conn, "p", 7, "x", now)
        _resolve(conn, "q", 7, "", now)
        assert stored_rows.list_eligible_queues(conn, "p") == [A, B]
        assert stored_rows.list_eligible_queues(conn, "q") == []
        assert unmatchable.read_has_queue(conn, ["p", "q"]) == {"p": True, "q": False}
        assert mapping.list_pool_ids(conn, ["lhcb"], [A, C]) == {A: ["p"], C: []}
        assert mapping.list_pool_ids(conn, ["cms"], [A]) == {A: []}
        view = conn.execute(text("SELECT * FROM pool_queues ORDER BY queue")).mappings().all()
        assert [row["queue"] for row in view] == ["a", "b"]
        assert {row["config_version"] for row in view} == {7}
        assert stored_rows.find_class(conn, "lhcb", A) == stored_rows.find_class(conn, "lhcb", B)
        assert stored_rows.find_class(conn, "cms", A) is None


def test_the_view_has_version_and_time_of_a_mapping_as_the_program_has_them(
    engine: Engine, now: datetime
) -> None:
    stamps = list(itertools.product((1, 2), (0, 1), (now, now + HOUR)))
    with database.writing(engine) as conn:
        _sync(conn, 1, now, {"x": [A]})
        _touch(conn, "p", now)
        _resolve(conn, "p", 1, "x", now)
        for own, of_vo in itertools.product(stamps, stamps):
            version, expiries, refreshed_at = own
            conn.execute(
                update(submit_pools).values(
                    config_version=version, expiries=expiries, refreshed_at=refreshed_at
                )
            )
            version, expiries, refreshed_at = of_vo
            conn.execute(
                update(queue_class_versions).values(
                    refreshed_version=version, refreshed_expiries=expiries, refreshed_at=refreshed_at
                )
            )
            [shown] = conn.execute(select(VIEW.c.config_version, VIEW.c.refreshed_at)).all()
            pool = pools.get_pool(conn, "p")
            assert tuple(shown) == (pool.config_version, pool.refreshed_at), (own, of_vo)


def test_a_queue_that_changes_is_mapped_to_what_its_new_class_is(engine: Engine, now: datetime) -> None:
    """Even before any pool is computed anew: a class is its parameters."""
    with database.writing(engine) as conn:
        _sync(conn, 1, now, {"x": [A, B], "y": [C]})
        _touch(conn, "p", now)
        _resolve(conn, "p", 1, "x", now)
        _sync(conn, 2, now, {"x": [A], "y": [C, B]})
        assert stored_rows.list_eligible_queues(conn, "p") == [A]
        _sync(conn, 3, now, {"y": [C]})
        assert stored_rows.list_eligible_queues(conn, "p") == []


def test_only_differences_are_written(engine: Engine, now: datetime) -> None:
    with database.writing(engine) as conn:
        _sync(conn, 1, now, {"x": [A], "y": [B], "z": [C]})
        _touch(conn, "p", now)
        assert _resolve(conn, "p", 1, "xy", now) == pools.MappingChange(gained=2, lost=0)
        assert _resolve(conn, "p", 1, "yz", now) == pools.MappingChange(gained=1, lost=1)
        before = _changes(conn)
        again = _resolve(conn, "p", 1, "yz", now + HOUR)
        assert again is not None
        assert not again
        _sync(conn, 2, now, {"x": [A], "y": [B], "z": [C]})
        assert _changes(conn) == before  # matchers have nothing to look at again
        assert pools.get_pool(conn, "p").refreshed_at == now + HOUR


def test_queue_classes_that_nobody_needs_go(engine: Engine, now: datetime) -> None:
    with database.writing(engine) as conn:
        _sync(conn, 1, now, {"x": [A], "y": [B]})
        _touch(conn, "p", now)
        _resolve(conn, "p", 1, "x", now)
        _sync(conn, 2, now, {"z": [A, B]})
        queue_class_store.prune_classes(conn, "lhcb")
        assert queue_class_store.read_slots(conn, "lhcb") == {
            "x" * 64: 0,
            "y" * 64: 1,
            "z" * 64: 2,
        }  # p may have x
    _refresh(engine, 2, now, {"z": [A, B]})
    with database.writing(engine) as conn:
        queue_class_store.prune_classes(conn, "lhcb")
        assert queue_class_store.read_slots(conn, "lhcb") == {"z" * 64: 2}
        _sync(conn, 3, now, {"z": [A, B], "v": [C]})
        assert queue_class_store.read_slots(conn, "lhcb") == {"z" * 64: 2, "v" * 64: 0}
        assert stored_rows.list_eligible_queues(conn, "p") == [A, B]


def test_an_older_version_changes_nothing(engine: Engine, now: datetime) -> None:
    with database.writing(engine) as conn:
        assert _sync(conn, 2, now, {"x": [A]})
        _touch(conn, "p", now)
        _resolve(conn, "p", 2, "x", now)
        assert not _sync(conn, 1, now, {"y": [A, B]})
        assert _resolve(conn, "p", 1, "", now) is None
        assert _resolve(conn, "p", 3, "", now) is None  # not synced yet
        assert stored_rows.list_eligible_queues(conn, "p") == [A]
        assert queue_class_store.read_version(conn, "lhcb") == 2
        assert queue_class_store.read_version(conn, "cms") is None


def test_a_pool_is_as_far_as_its_vo_unless_it_came_later(engine: Engine, now: datetime) -> None:
    with database.writing(engine) as conn:
        _sync(conn, 1, now, {"x": [A]})
        for pool_id in ("new", "old", "later"):
            _touch(conn, pool_id, now)
        _resolve(conn, "old", 1, "x", now)
        queue_class_store.record_refresh(conn, "lhcb", at=now + HOUR)
        _resolve(conn, "later", 1, "x", now + 2 * HOUR)
        assert pools.list_unmapped(conn, "lhcb") == ["new"]
        found = {
            pool.pool_id: pool.refreshed_at
            for pool in listing.list_pools(conn, listing.PoolFilter(), limit=10)
        }
        assert found == {"new": None, "old": now + HOUR, "later": now + 2 * HOUR}
        _sync(conn, 2, now, {"x": [A]})
        assert pools.get_pool(conn, "old").config_version == 1
        assert _standing(conn).is_of((1, 0), refreshed_after=now + HOUR)
        assert not _standing(conn).is_of((1, 0), refreshed_after=now + 2 * HOUR)
        assert not _standing(conn).is_of((2, 0), refreshed_after=now)
        queue_class_store.record_refresh(conn, "lhcb", at=now + 3 * HOUR)
        assert _standing(conn).is_of((2, 0), refreshed_after=now)
        assert {pool.config_version for pool in listing.list_pools(conn, listing.PoolFilter(), limit=10)} == {
            0,
            2,
        }
        assert sorted(pools.list_refreshed(conn, now + 2 * HOUR)) == ["later", "old"]
        assert pools.list_refreshed(conn, now + 3 * HOUR) == []


def _standing(conn: Connection) -> RefreshState:
    return queue_class_store.read_states(conn)["lhcb"]


def _refresh(
    engine: Engine, version: int, now: datetime, members: Mapping[str, Iterable[QueueAddress]]
) -> None:
    """What the pool agent does with all pools; here each is mapped to all classes."""
    with database.writing(engine) as conn:
        new = pools.lock_pools(conn, "lhcb", pools.list_unmapped(conn, "lhcb"))
        if not _sync(conn, version, now, members):
            return
        queue_class_store.lock_state(conn, "lhcb")
        slots = queue_class_store.read_slots(conn, "lhcb")
        sets = EligibleSets(eligible=mask_from([slots[name * 64] for name in members]))
        stored_before = pools.read_mappings(conn, "lhcb")
        pools.refresh_mappings(
            conn,
            vo="lhcb",
            config_version=version,
            new=dict.fromkeys(new, sets),
            wanted=dict.fromkeys(stored_before.keys() - set(new), sets),
            before=stored_before,
            now=now,
        )
        queue_class_store.record_refresh(conn, "lhcb", at=now)


def _arrive(
    engine: Engine,
    version: int,
    now: datetime,
    members: Mapping[str, Iterable[QueueAddress]],
    pool_ids: list[str],
) -> bool:
    """What an optimizer does that knows this version; whether it was overtaken."""
    with database.writing(engine) as conn:
        new = [NewPool(pool_id=each, vo="lhcb", requirements="{}", original="{}") for each in pool_ids]
        unresolved = pools.touch_pools(conn, new, now=now)
        _sync(conn, version, now, members)
        digests = {pool_id: dict.fromkeys((name * 64 for name in members), False) for pool_id in unresolved}
        return pools.store_mappings(conn, vo="lhcb", config_version=version, digests=digests, now=now) is None


def test_a_pool_resolved_from_n_while_n_plus_1_lands_ends_at_n_plus_1(engine: Engine, now: datetime) -> None:
    """Resolving first: the newer version waits, then finds the pool."""
    older, newer = {"x": [A]}, {"y": [A, B]}
    with database.writing(engine) as conn:
        _sync(conn, 1, now, older)

    def resolve(conn: Connection) -> None:
        _touch(conn, "p", now)
        _resolve(conn, "p", 1, "x", now)

    concurrency.meanwhile(engine, resolve, lambda: _refresh(engine, 2, now, newer))
    with database.reading(engine) as conn:
        assert stored_rows.list_eligible_queues(conn, "p") == [A, B]
        assert pools.get_pool(conn, "p").config_version == 2


def test_a_newer_version_that_lands_first_overtakes_the_older(engine: Engine, now: datetime) -> None:
    older, newer = {"x": [A]}, {"y": [A, B]}
    with database.writing(engine) as conn:
        _sync(conn, 1, now, older)
    overtaken = concurrency.meanwhile(
        engine,
        lambda conn: _sync(conn, 2, now, newer),
        lambda: _arrive(engine, 1, now, older, ["p"]),
    )
    assert overtaken  # to be computed again
    assert not _arrive(engine, 2, now, newer, ["p"])
    with database.reading(engine) as conn:
        assert stored_rows.list_eligible_queues(conn, "p") == [A, B]


def test_a_version_that_lands_just_before_is_the_one_that_is_replaced(engine: Engine, now: datetime) -> None:
    first, between = {"x": [A, B]}, {"y": [A], "z": [C]}
    with database.writing(engine) as conn:
        _sync(conn, 1, now, first)

    def back() -> bool:
        with database.writing(engine) as conn:
            return queue_class_store.store_classes(
                conn, vo="lhcb", config_version=3, classes=_classes(first), now=now
            )

    assert concurrency.meanwhile(engine, lambda conn: _sync(conn, 2, now, between), back)
    with database.reading(engine) as conn:
        of_each = [stored_rows.find_class(conn, "lhcb", queue) for queue in (A, B, C)]
        assert of_each[0] == of_each[1] is not None
        assert of_each[2] is None


def test_an_unused_pool_goes_after_the_grace_time_with_its_mapping(engine: Engine, now: datetime) -> None:
    with database.writing(engine) as conn:
        _sync(conn, 1, now, {"x": [A]})
        _touch(conn, "p", now)
        _resolve(conn, "p", 1, "x", now)
        assert pools.delete_unused(conn, vo="lhcb", before=now, now=now) == []
        assert pools.delete_unused(conn, vo="lhcb", before=now + HOUR, now=now + 2 * HOUR) == ["p"]
        assert conn.execute(select(pool_mappings)).all() == []
        assert pools.delete_unused(conn, vo="lhcb", before=now + HOUR, now=now + 2 * HOUR) == []


@pytest.mark.parametrize(
    ("status", "ended", "goes"),
    [
        (JobStatus.WAITING, None, False),
        (JobStatus.RUNNING, None, False),
        (JobStatus.RESCHEDULED, None, False),
        (JobStatus.DONE, 3 * HOUR, False),  # a job may be rescheduled soon after
        (JobStatus.FAILED, 3 * HOUR, False),
        (JobStatus.DONE, HOUR, True),
        (JobStatus.KILLED, HOUR, True),
    ],
)
def test_a_pool_stays_while_a_job_uses_it_or_did_lately(
    engine: Engine, now: datetime, status: JobStatus, ended: timedelta | None, *, goes: bool
) -> None:
    with database.writing(engine) as conn:
        _touch(conn, "p", now)
        stored_rows.force(
            conn,
            stored_rows.job_in(conn, now, status),
            submit_pool="p",
            ended_at=None if ended is None else now + ended,
        )
        assert bool(pools.delete_unused(conn, vo="lhcb", before=now + 2 * HOUR, now=now + 3 * HOUR)) is goes


@pytest.mark.parametrize("last", [{"ended_at": True}, {"status": JobStatus.RUNNING.value}])
def test_whether_a_pool_may_go_is_seen_without_reading_all_of_its_ended_jobs(
    postgresql: Engine, now: datetime, last: dict[str, object]
) -> None:
    late = now + HOUR
    with database.writing(postgresql) as conn:
        _touch(conn, "p", now)
        for job_id in stored_rows.job_ids(conn, now, 1000):
            stored_rows.force(conn, job_id, submit_pool="p", status=JobStatus.DONE.value, ended_at=now)
        stored_rows.force(conn, job_id, **(last | {"ended_at": late if "ended_at" in last else None}))
        conn.execute(text("ANALYZE"))

    @event.listens_for(postgresql, "before_cursor_execute", retval=True)
    def explain(*arguments: Any) -> tuple[str, Any]:
        return f"EXPLAIN (ANALYZE) {arguments[2]}", arguments[3]

    with database.writing(postgresql) as conn:
        found = conn.execute(pools.UNUSED, {"vo": "lhcb", "before": late, "limit": 10}).cursor.fetchall()
    plan = "\n".join(line for (line,) in found)
    assert sum(map(int, re.findall(r"Rows Removed by Filter: (\d+)", plan))) < 100, plan


def test_a_job_that_arrives_before_the_deletion_keeps_its_pool(engine: Engine, now: datetime) -> None:
    late = now + 2 * HOUR
    with database.writing(engine) as conn:
        _touch(conn, "p", now)
        job_id = stored_rows.job_in(conn, now, JobStatus.WAITING)

    def delete() -> list[str]:
        with database.writing(engine) as conn:
            return pools.delete_unused(conn, vo="lhcb", before=now + HOUR, now=late)

    def arrive(conn: Connection) -> None:
        _touch(conn, "p", late)
        stored_rows.force(conn, job_id, submit_pool="p")

    # PostgreSQL passes over the locked row, SQLite waits for the writer.
    assert concurrency.meanwhile(engine, arrive, delete, waits=engine.dialect.name == "sqlite") == []
    with database.reading(engine) as conn:
        assert pools.get_pool(conn, "p").last_used_at == late


@contextmanager
def _two_transactions(engine: Engine) -> Iterator[tuple[Connection, Connection]]:
    """Two open transactions, of which the second one fails if it waits for the first."""
    with database.writing(engine) as first, database.writing(engine) as second:
        scopes.limit_wait(second, milliseconds=30_000)
        yield first, second


def _put_resolved(engine: Engine, now: datetime, *pool_ids: str) -> None:
    with database.writing(engine) as conn:
        _sync(conn, 1, now, {"x": [A]})
        for pool_id in pool_ids:
            _touch(conn, pool_id, now)
            _resolve(conn, pool_id, 1, "x", now)


def test_the_removal_of_pools_passes_over_one_that_is_in_use(postgresql: Engine, now: datetime) -> None:
    _put_resolved(postgresql, now, "p", "q")
    with _two_transactions(postgresql) as (user, remover):
        _touch(user, "p", now)
        late = now + 2 * HOUR
        assert pools.delete_unused(remover, vo="lhcb", before=now + HOUR, now=late) == ["q"]


def test_a_submission_passes_over_a_pool_that_is_being_removed(postgresql: Engine, now: datetime) -> None:
    _put_resolved(postgresql, now, "p", "q")
    with _two_transactions(postgresql) as (remover, user):
        remover.execute(pools.LOCK_POOLS, {"ids": ["p"], "the_vo": "lhcb"})
        assert pools.lock_resolved(user, ["p", "q"], now=now) == {"q"}


def test_of_two_submissions_at_once_one_records_the_use_of_a_pool(postgresql: Engine, now: datetime) -> None:
    _put_resolved(postgresql, now, "p", "q")
    with _two_transactions(postgresql) as (first, second):
        assert pools.lock_resolved(first, ["p"], now=now + HOUR) == {"p"}
        assert pools.lock_resolved(second, ["p", "q"], now=now + 2 * HOUR) == {"p", "q"}
    with database.reading(postgresql) as conn:
        used = [pools.get_pool(conn, each).last_used_at for each in ("p", "q")]
    assert used == [now + HOUR, now + 2 * HOUR]


def test_who_does_not_wait_for_queue_classes_sees_none_while_they_are_replaced(
    postgresql: Engine, now: datetime
) -> None:
    _put_resolved(postgresql, now)
    with _two_transactions(postgresql) as (replacing, reader):
        _sync(replacing, 2, now, {"x": [A], "y": [B]})
        assert queue_class_store.lock_version(reader, "lhcb", wait=False) is None
    with database.writing(postgresql) as conn:
        assert queue_class_store.lock_version(conn, "lhcb", wait=False) == (2, 0)


def test_a_job_that_arrives_after_the_deletion_gets_its_pool_anew(engine: Engine, now: datetime) -> None:
    late = now + 2 * HOUR
    with database.writing(engine) as conn:
        _touch(conn, "p", now)
        _sync(conn, 1, now, {"x": [A]})
        _resolve(conn, "p", 1, "x", now)

    def arrive() -> bool:
        with database.writing(engine) as conn:
            return _touch(conn, "p", late) and bool(_resolve(conn, "p", 1, "x", late))

    def delete(conn: Connection) -> None:
        assert pools.delete_unused(conn, vo="lhcb", before=now + HOUR, now=late) == ["p"]

    assert concurrency.meanwhile(engine, delete, arrive)  # it is new again, and was resolved again
    with database.reading(engine) as conn:
        assert stored_rows.list_eligible_queues(conn, "p") == [A]


def test_jobs_that_arrive_while_pools_are_deleted_never_end_without_one(
    engine: Engine, now: datetime
) -> None:
    names = [f"p{n}" for n in range(6)]
    minutes = itertools.count()

    def work(number: int) -> None:
        dice = random.Random(number)
        for _ in range(15):
            time = now + timedelta(minutes=next(minutes))
            if number < 2:
                with database.writing(engine) as conn:
                    pools.delete_unused(conn, vo="lhcb", before=time, now=time)
                continue
            pool_ids = dice.sample(names, 2)
            with database.writing(engine) as conn:
                jobs = stored_rows.job_ids(conn, time, 2)
                new = [
                    NewPool(pool_id=each, vo="lhcb", requirements="{}", original="{}") for each in pool_ids
                ]
                pools.touch_pools(conn, new, now=time)
                for job_id, pool_id in zip(jobs, pool_ids, strict=True):
                    stored_rows.force(conn, job_id, submit_pool=pool_id, status="Waiting")
            with database.writing(engine) as conn:  # they are soon over
                stored_rows.force(conn, jobs[0], status="Done", ended_at=time)

    concurrency.at_once(5, work)
    with database.reading(engine) as conn:
        used = conn.execute(text("SELECT DISTINCT submit_pool FROM jobs WHERE status = 'Waiting'")).scalars()
        there = conn.execute(select(submit_pools.c.pool_id)).scalars()
        assert set(used) <= set(there)
