"""From what each outlet may serve to posts."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace

from cs_config.options import bounds
from pilotage.fabric.batch.batch_system import JobResources
from pilotage.fabric.director import matcher_client, recorded_pilots, targets
from pilotage.fabric.director.matcher_client import TargetWork, TaskQueueWork
from pilotage.fabric.director.targets import Broker, QueueTarget, TargetGroup
from tests.support.factories.director_pilots import pilot

SHORT, LONG, OTHER = "A/ce/short", "A/ce/long", "B/ce/all"
AMD = ("--constraint=amd",)
BROKER = Broker(system="farm", queues={SHORT: "short", LONG: "long", OTHER: "all"})


def look(queue: str, *task_queues: tuple[int, str | None], broker: str = "wms", **flags: str) -> TargetWork:
    """What waits for an outlet: (number, pool); pools named as flags are sent with them."""
    return TargetWork(
        target=QueueTarget(queue=queue, system="farm", batch_queue="x", broker=broker),
        groups={(flag,): (pool,) for pool, flag in flags.items()},
        task_queues=tuple(
            TaskQueueWork(number=number, waiting=2, submit_pool=pool) for number, pool in task_queues
        ),
    )


def post(*queues: str, flags: tuple[str, ...] = (), broker: str = "wms") -> TargetGroup:
    return TargetGroup(vo="cms", queues=tuple(sorted(queues)), flags=flags, broker=broker)


def test_a_broker_may_pick_of_the_queues_that_would_do() -> None:
    looks = [look(SHORT, (1, None)), look(LONG, (1, None), (2, None)), look(OTHER)]

    anywhere, long_only = matcher_client.collect_work("cms", looks, {"wms": BROKER})

    assert long_only.groups.keys() == {post(LONG)}
    assert anywhere.groups.keys() == {post(LONG, SHORT), post(LONG)}, "who lands at long serves it as well"


def test_queues_with_other_flags_are_not_mixed() -> None:
    looks = [look(SHORT, (1, "p")), look(LONG, (1, "p"), p=AMD[0]), look(OTHER, (1, "p"))]

    [work] = matcher_client.collect_work("cms", looks, {"wms": BROKER})

    assert work.groups.keys() == {post(SHORT, OTHER), post(LONG, flags=AMD)}


def test_behind_one_entry_pilots_may_land_in_any_queue() -> None:
    looks = [look(SHORT), look(LONG, (1, None)), look(OTHER)]
    router = Broker(system="farm", queues=BROKER.queues, entry="grid")

    [work] = matcher_client.collect_work("cms", looks, {"wms": router})

    assert work.groups.keys() == {post(LONG, SHORT, OTHER)}


def test_a_job_is_counted_once_for_straight_ways_and_brokers_together() -> None:
    looks = [look(LONG, (1, None), broker=""), look(LONG, (1, None)), look(SHORT, (1, None))]

    [work] = matcher_client.collect_work("cms", looks, {"wms": BROKER})

    assert work.jobs == 2
    assert work.groups.keys() == {post(LONG, broker=""), post(LONG, SHORT)}


def test_a_brokers_pilots_belong_to_the_post_that_is_closest_to_where_they_are_or_may_be() -> None:
    posts = [post(LONG), post(LONG, SHORT), post(LONG, broker="")]
    anywhere = pilot(f"north.wms.any.{1:024x}", possible_queues=(LONG, SHORT, OTHER))
    at_long = pilot(f"north.wms.any.{2:024x}", queue=LONG, possible_queues=(LONG, SHORT))
    at_short = pilot(f"north.wms.any.{3:024x}", queue=SHORT, possible_queues=(LONG, SHORT))
    elsewhere = pilot(f"north.wms.any.{4:024x}", queue=OTHER, possible_queues=(LONG, OTHER))
    straight = pilot(f"north.any.{5:024x}", queue=LONG)

    found = recorded_pilots.pilots_by_group(
        [anywhere, at_long, at_short, elsewhere, straight], posts, "north"
    )

    assert found == {
        post(LONG, SHORT): (anywhere, at_short),
        post(LONG): (at_long,),
        post(LONG, broker=""): (straight,),
    }


def test_a_slot_that_is_no_whole_node_differs_from_a_queue_that_gives_them() -> None:
    slot = JobResources(cores=4)
    target = QueueTarget(
        queue=LONG, system="farm", batch_queue="x", resources=slot, stated=frozenset({"cores"})
    )

    assert targets.list_differences(target, {"WholeNode": True}) == {"whole_node": (0, 1)}
    unstated = QueueTarget(queue=LONG, system="farm", batch_queue="x")
    assert not targets.list_differences(unstated, {"WholeNode": True, "NumberOfProcessors": 8})


def test_intents_for_a_broker_of_many_queues_go_out_in_requests_that_the_service_reads() -> None:
    sent: list[int] = []

    class Client:
        def register_pilots(self, pilots: Sequence[Mapping[str, object]], *, vo: str) -> Mapping[str, str]:
            assert len(json.dumps({"vo": vo, "pilots": pilots})) <= bounds.BODY
            sent.append(len(pilots))
            return {str(each["stamp"]): "secret" for each in pilots}

    many = post(*(f"LCG.Site{number:03}.example.org/ce01.example.org/long" for number in range(500)))
    known = recorded_pilots.Pilots(Client(), "cms", "north")  # type: ignore[arg-type]
    assert len(known.intend({f"north.any.{number}": many for number in range(1_000)})) == 1_000
    assert len(known.intend({f"north.any.{number}": post(LONG) for number in range(1_000)})) == 1_000
    assert sent == [*[20] * 50, 1_000]


def test_pilots_with_equal_flags_serve_the_pool_and_the_jobs_that_need_them() -> None:
    of_pool = look(LONG, (1, "p"), (2, None), broker="", p=AMD[0])
    found = replace(of_pool, groups={**of_pool.groups, (): ("any",)}, flags={2: AMD})

    assert found.straight("cms") == {
        post(LONG, broker=""): ("any",),
        post(LONG, broker="", flags=AMD): ("p", "any"),
    }
