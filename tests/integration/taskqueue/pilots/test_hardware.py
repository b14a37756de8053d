"""Hardware that pilots of a site had: each shape is a row, and of many the latest are kept."""

from datetime import datetime, timedelta

from sqlalchemy import Engine
from sqlalchemy.event import listen

from matcher import conditions
from requirements.requirement_class import RequirementClass
from requirements.resource import Resource
from taskqueue import retention
from taskqueue.db import database
from taskqueue.pilots import hardware
from taskqueue.pilots.hardware import MOST_SHAPES, HardwareShape, SeenHardware

DAY = timedelta(days=1)
BIG = HardwareShape(
    processors=64, max_ram=257_318, architecture="x86_64", cpu_features=frozenset({"avx", "sse2"})
)
SMALL = HardwareShape(processors=8, max_ram=16_000)


def store(engine: Engine, now: datetime, *seen: tuple[str, HardwareShape]) -> None:
    with database.writing(engine) as conn:
        hardware.store_seen(conn, seen, now=now)
    with database.writing(engine) as conn:
        hardware.remove_excess(conn, {site for site, _ in seen})


def read(engine: Engine, since: datetime, *sites: str) -> list[SeenHardware]:
    with database.reading(engine) as conn:
        return list(hardware.read_seen(conn, sites, since=since))


def test_a_shape_comes_back_equal_with_its_days(engine: Engine, now: datetime) -> None:
    store(engine, now, ("A", BIG), ("B", SMALL))
    store(engine, now + 3 * DAY, ("A", BIG), ("A", SMALL))
    first, second = read(engine, now, "A")
    assert {first.shape, second.shape} == {BIG, SMALL}
    days = {each.shape: (each.first_seen_at, each.last_seen_at) for each in (first, second)}
    assert days == {BIG: (now, now + 3 * DAY), SMALL: (now + 3 * DAY, now + 3 * DAY)}
    assert read(engine, now + DAY, "B") == []


def test_of_many_shapes_the_latest_are_kept(engine: Engine, now: datetime) -> None:
    many = [("A", HardwareShape(processors=number)) for number in range(1, MOST_SHAPES + 1)]
    store(engine, now, *many, ("B", SMALL))
    store(engine, now + DAY, ("A", BIG))
    found = read(engine, now, "A")
    assert (len(found), found[0].shape) == (MOST_SHAPES, BIG)
    assert len(read(engine, now, "B")) == 1


def test_rows_are_stored_and_removed_in_one_order_each_in_its_transaction(
    engine: Engine, now: datetime
) -> None:
    many = [("A", HardwareShape(processors=number)) for number in range(1, MOST_SHAPES + 20)]
    with database.writing(engine) as conn:
        hardware.store_seen(conn, many, now=now)
    assert len(read(engine, now, "A")) == len(many), "what others may hold is not touched"
    removed: list[object] = []

    def note(*event: object) -> None:
        if str(event[2]).startswith("DELETE"):
            removed.append(event[3])

    with database.writing(engine) as conn:
        listen(conn, "before_cursor_execute", note)
        hardware.remove_excess(conn, ["A"])
    [rows] = removed
    assert isinstance(rows, list)
    keys = [tuple(row.values()) if isinstance(row, dict) else tuple(row) for row in rows]
    assert len(keys) == 19
    assert keys == sorted(keys)


def test_amounts_are_rounded_up_so_that_no_job_for_the_whole_is_warned_of() -> None:
    offered = Resource(cpu_time=100, processors=8, max_ram=15_873, scratch_mb=31_111)
    shape = HardwareShape.from_resource(offered)
    assert (shape.max_ram, shape.scratch_mb) == (16_000, 40_000)
    whole = RequirementClass(vo="lhcb", cpu_time=90, min_ram=15_873, processors_min=8, processors_max=8)
    assert conditions.fits(whole, shape.to_resource())


def test_only_hardware_decides() -> None:
    shape = HardwareShape(processors=4, max_ram=8000).to_resource()
    asked = RequirementClass(
        vo="lhcb",
        cpu_time=10**9,
        sites=frozenset({"A"}),
        tags=frozenset({"x"}),
        job_types=frozenset({"Merge"}),
    )
    assert conditions.fits(asked, shape)
    assert conditions.refusals(RequirementClass(vo="lhcb", cpu_time=1, min_ram=9000), shape, ()) == ("ram",)


def test_old_shapes_are_removed(engine: Engine, now: datetime) -> None:
    store(engine, now, ("A", BIG))
    store(engine, now + 80 * DAY, ("A", SMALL))
    with database.writing(engine) as conn:
        assert retention.remove_old(conn, "seen_hardware", before=now + DAY, limit=100) == 1
    assert [each.shape for each in read(engine, now, "A")] == [SMALL]
