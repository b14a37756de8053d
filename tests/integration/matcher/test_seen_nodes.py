"""What the last pilots of a queue lacked: by what they measured, for how long, and for which classes."""

from collections.abc import Iterator
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any

import pytest
from sqlalchemy import Connection, Engine, insert

from cs_config import validate
from cs_config.tree.address import QueueAddress
from cs_config.tree.configuration import Configuration
from matcher import seen_nodes
from matcher.request import queue_offer
from matcher.seen_nodes import NodeLack, SeenNodes
from requirements.requirement_class import RequirementClass
from requirements.resource import Resource
from taskqueue.db import database
from taskqueue.pilots import hardware
from taskqueue.pilots.hardware import HardwareShape
from taskqueue.schema.tables import pilots, seen_hardware
from tests.support import databases

pytestmark = databases.BOTH

QUEUE = QueueAddress(site="LCG.A.org", ce="ce", queue="q")
OFFERED = queue_offer.build_resource({"CPUTime": 100_000, "MaxRAM": 4000, "GPUs": 1})
WORDS = "{Vocabulary: Slurm, Attributes: {Architecture: {features: {aarch64: arm}}}}"
PLAIN, MAPPED = (
    validate.parse(
        f"""
Resources:
  Sites:
    LCG.A.org: {{CEs: {{ce: {{CPUTime: 100000, {more} Queues: {{q: {{}}}}}}}}}}
Registry:
  VO: {{cms: {{}}}}
""",
        "test.yaml",
    )
    for more in (
        "",
        "Forwarding: {Vocabulary: Slurm, Attributes: {Architecture: {features: {aarch64: arm}}}},",
    )
)
IMAGE = RequirementClass(vo="cms", cpu_time=60, image="elsewhere")
MINUTE = timedelta(minutes=1)


@pytest.fixture(name="conn")
def _connect(engine: Engine) -> Iterator[Connection]:
    with database.writing(engine) as conn:
        yield conn


def store(conn: Connection, at: datetime, *, number: int = 2, vo: str = "cms", **node: Any) -> None:
    """Pilots of the queue that asked at a moment, with this hardware."""
    known = {"node_tags": frozenset[str](), "architecture": "x86_64", "cpu_features": frozenset({"sse2"})}
    shape = HardwareShape(**known | node)
    hardware.store_seen(conn, [(QUEUE.site, shape)], now=at)
    rows = [
        {
            "stamp": f"{shape.digest}.{vo}.{at.isoformat()}.{each}",
            "vo": vo,
            "status": "Done",
            "site": QUEUE.site,
            "ce": QUEUE.ce,
            "queue": QUEUE.queue,
            "created_at": at,
            "updated_at": at,
            "asked_at": at,
            "shape": shape.digest,
        }
        for each in range(number)
    ]
    conn.execute(insert(pilots), rows)


def find(
    conn: Connection, now: datetime, asked: RequirementClass = IMAGE, config: Configuration = PLAIN
) -> NodeLack | None:
    return SeenNodes(conn, config, {QUEUE.site}, now).find_lack(QUEUE, OFFERED, asked)


def test_a_queue_lacks_what_none_of_its_last_pilots_had_until_they_are_too_old(
    conn: Connection, now: datetime
) -> None:
    assert find(conn, now) is None, "nothing is known"
    store(conn, now)
    lack = find(conn, now + MINUTE)
    assert lack == NodeLack(
        lacking=("Image (needs apptainer: hostfeat:apptainer)",),
        pilots=2,
        since=now,
        until=now + seen_nodes.KEPT,
    )
    assert find(conn, lack.until) is not None
    assert find(conn, lack.until + MINUTE) is None, "it is tried again"
    store(conn, now + 2 * MINUTE, number=1, node_tags=frozenset({"hostfeat:apptainer"}))
    assert find(conn, now + 3 * MINUTE) is None, "one had it"


def test_pilots_without_flags_show_nothing_of_the_nodes_that_flags_find(
    conn: Connection, now: datetime
) -> None:
    store(conn, now)
    arm = RequirementClass(vo="cms", cpu_time=60, architecture="aarch64")
    assert find(conn, now, arm) is not None
    assert find(conn, now, arm, MAPPED) is None, "its pilots are sent to other nodes"
    assert find(conn, now, IMAGE, MAPPED) is not None, "the site has no words for this"


def test_one_pilot_shows_nothing(conn: Connection, now: datetime) -> None:
    store(conn, now, number=1)
    assert find(conn, now) is None


def test_pilots_of_another_vo_neither_close_a_queue_nor_open_it(conn: Connection, now: datetime) -> None:
    store(conn, now, vo="lhcb")
    store(conn, now, number=1)
    assert find(conn, now) is None, "of its own VO only one is known"
    store(conn, now + MINUTE, number=1)
    store(conn, now + MINUTE, vo="lhcb", node_tags=frozenset({"hostfeat:apptainer"}))
    lack = find(conn, now + MINUTE)
    assert lack is not None, "they state what they like"
    assert (lack.pilots, lack.until) == (2, now + MINUTE + seen_nodes.KEPT)


@pytest.mark.parametrize(
    ("asked", "node"),
    [
        ({"architecture": "x86_64"}, {"architecture": "aarch64"}),
        ({"cpu_features": frozenset({"avx2"})}, {"cpu_features": frozenset({"sse2"})}),
        ({"gpus": 1, "gpus_max": 1, "gpu_vendor": "nvidia"}, {"gpus": 1, "gpu_vendor": "amd"}),
        ({"gpus": 1, "gpus_max": 1, "gpu_architecture": "sm_80"}, {"gpus": 1, "gpu_architecture": 70}),
        ({"gpus": 1, "gpus_max": 1, "gpu_memory_mb": 20_000}, {"gpus": 1, "gpu_memory_mb": 16_000}),
        ({"gpus": 1, "gpus_max": 1, "gpu_runtime": "12.4"}, {"gpus": 1, "gpu_runtime": 11_000_000}),
        ({"tag_expression": "cvmfs:cms & ~hostfeat:x"}, {"node_tags": frozenset({"cvmfs:lhcb"})}),
    ],
    ids=["architecture", "features", "vendor", "gpu-architecture", "gpu-memory", "runtime", "tags"],
)
def test_every_condition_that_nodes_decide_is_learnt(
    conn: Connection, now: datetime, asked: dict[str, Any], node: dict[str, Any]
) -> None:
    wanted = RequirementClass(vo="cms", cpu_time=60, **asked)
    store(conn, now, **node)
    assert find(conn, now, wanted) is not None
    plain = RequirementClass(vo="cms", cpu_time=60)
    assert SeenNodes(conn, PLAIN, {QUEUE.site}, now).may_run(QUEUE, OFFERED, plain)


def test_what_a_queue_states_or_a_shape_does_not_keep_is_not_learnt(conn: Connection, now: datetime) -> None:
    store(conn, now, node_tags=None, architecture=None, cpu_features=None)
    assert find(conn, now) is None, "a shape of an earlier release has no tags"
    seen = SeenNodes(conn, PLAIN, {QUEUE.site}, now)
    store(conn, now)
    stated: Resource = replace(OFFERED, architecture="aarch64")
    arm = RequirementClass(vo="cms", cpu_time=60, architecture="aarch64")
    assert seen.may_run(QUEUE, stated, arm), "the queue states it, whatever one of its pilots had"
    conn.execute(seen_hardware.delete())
    assert find(conn, now) is None, "shapes beyond the bound of a site are removed"
