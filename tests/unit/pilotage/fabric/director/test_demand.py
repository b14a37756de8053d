import math
import random
from collections import Counter
from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pilotage.fabric.director import demand
from pilotage.fabric.director.demand import DemandedWork, DemandSituation, Place, QueueLimits, QueueRoom
from pilotage.fabric.director.targets import (
    Pause,
    SubmittedAs,
    TargetGroup,
    Trial,
    find_pause,
    flags_digest,
    most_to_send,
    new_stamp,
    parse_stamp,
)

NOW = datetime(2026, 3, 1, 12, tzinfo=UTC)
QUEUES = ("A/ce/long", "A/ce/short", "B/ce/all")
VOS = ("cms", "dune")
POSTS = tuple(
    TargetGroup(vo=vo, queues=(queue,), flags=flags)
    for vo in VOS
    for queue in QUEUES
    for flags in ((), ("--constraint=amd",))
)
BROKERED = tuple(
    TargetGroup(vo=vo, queues=queues, broker="wms")
    for vo in VOS
    for queues in (QUEUES, QUEUES[:2], QUEUES[1:2])
)
OF_CMS = tuple(TargetGroup(vo="cms", queues=(queue,)) for queue in QUEUES)
PARTS = st.sampled_from((1.0, 1 / 2, 1 / 3, 1 / 8))


def whole(*groups: TargetGroup) -> dict[TargetGroup, float]:
    """Each job takes a whole slot."""
    return dict.fromkeys(groups, 1.0)


works = st.builds(
    DemandedWork,
    jobs=st.integers(1, 12),
    groups=st.dictionaries(st.sampled_from(POSTS), PARTS, min_size=1, max_size=5),
    ranks=st.dictionaries(st.sampled_from(QUEUES), st.integers(0, 2).map(float)),
)
rooms_of_vos = st.dictionaries(
    st.tuples(st.sampled_from(VOS), st.sampled_from(QUEUES)),
    st.builds(QueueRoom, pilots=st.integers(0, 15)),
)


def alike(rooms: dict[str, QueueRoom]) -> dict[Place, QueueRoom]:
    return {(vo, queue): room for queue, room in rooms.items() for vo in VOS}


situations = st.builds(
    DemandSituation,
    work=st.lists(works, max_size=6),
    rooms=rooms_of_vos,
    there=st.dictionaries(st.sampled_from(POSTS), st.integers(0, 8)),
    most=st.dictionaries(st.sampled_from(POSTS), st.integers(0, 3)),
)


def decided(situation: DemandSituation) -> Counter[TargetGroup]:
    return Counter(demand.decide_pilots(situation, random.Random(0)).new)


def room_of(situation: DemandSituation, queue: str, *vos: str) -> int:
    return max(
        (situation.rooms[vo, queue].pilots for vo in vos or VOS if (vo, queue) in situation.rooms), default=0
    )


def sent_to(new: Counter[TargetGroup], queue: str, *vos: str) -> int:
    return sum(number for post, number in new.items() if post.queues == (queue,) and post.vo in vos)


@given(situations)
def test_no_queue_gets_more_than_it_has_room_for_and_no_post_more_than_it_may(
    situation: DemandSituation,
) -> None:
    new = decided(situation)

    for queue in QUEUES:
        sent = Counter({vo: sent_to(new, queue, vo) for vo in VOS})
        assert sent.total() <= room_of(situation, queue)
        assert all(sent[vo] <= room_of(situation, queue, vo) for vo in VOS)
    assert all(new[post] <= most for post, most in situation.most.items())


@given(situations)
def test_no_more_pilots_are_sent_than_jobs_wait(situation: DemandSituation) -> None:
    assert decided(situation).total() <= sum(work.jobs for work in situation.work)


@given(st.integers(1, 40), st.integers(0, 12), st.sampled_from((1, 2, 3, 8)), st.integers(0, 6))
def test_work_of_one_choice_gets_the_slots_that_it_lacks(jobs: int, there: int, each: int, room: int) -> None:
    group = POSTS[0]
    work = [DemandedWork(jobs=jobs, groups={group: 1 / each})]
    rooms = alike({group.queues[0]: QueueRoom(pilots=room)})

    new = decided(DemandSituation(work=work, rooms=rooms, there={group: there}))

    assert new[group] == min(room, max(0, math.ceil(jobs / each) - there))


@given(situations)
def test_a_plan_that_was_carried_out_asks_for_nothing_more(situation: DemandSituation) -> None:
    new = decided(situation)
    rooms = {
        (vo, queue): replace(room, pilots=max(0, room.pilots - sent_to(new, queue, *VOS)))
        for (vo, queue), room in situation.rooms.items()
    }
    there = Counter(situation.there) + new
    most = {group: number - new[group] for group, number in situation.most.items()}

    again = decided(replace(situation, there=there, rooms=rooms, most=most))

    # Other jobs than at first may share a slot, and leave a part of one in each group.
    assert again.total() <= sum(len(work.groups) for work in situation.work)


@given(
    st.lists(
        st.builds(
            DemandedWork,
            jobs=st.integers(1, 12),
            groups=st.dictionaries(st.sampled_from(POSTS + BROKERED), PARTS, min_size=1, max_size=5),
        ),
        max_size=6,
    ),
    st.dictionaries(st.sampled_from(QUEUES), st.builds(QueueRoom, pilots=st.integers(0, 15))),
)
def test_pilots_of_brokers_fit_into_the_room_of_all_queues_together(
    work: list[DemandedWork], rooms: dict[str, QueueRoom]
) -> None:
    new = decided(DemandSituation(work=work, rooms=alike(rooms)))

    for queues in {post.queues for post in POSTS + BROKERED}:
        there = sum(number for post, number in new.items() if set(post.queues) <= set(queues))
        assert there <= sum(rooms[queue].pilots for queue in queues if queue in rooms)


def test_a_broker_picks_where_it_may_and_jobs_with_fewer_choices_get_their_room() -> None:
    anywhere = TargetGroup(vo="cms", queues=QUEUES[:2], broker="wms")
    there = TargetGroup(vo="cms", queues=QUEUES[1:2], broker="wms")
    rooms = {QUEUES[0]: QueueRoom(pilots=2), QUEUES[1]: QueueRoom(pilots=3)}
    work = [
        DemandedWork(jobs=2, groups=whole(anywhere, there)),
        DemandedWork(jobs=3, groups=whole(there)),
    ]

    assert decided(DemandSituation(work=work, rooms=alike(rooms))) == {anywhere: 2, there: 3}


def test_few_places_go_to_those_with_fewest_pilots_and_no_more_than_they_want() -> None:
    one, two, three = (TargetGroup(vo="cms", queues=(name,)) for name in "abc")

    assert demand.share_places({one: 9, two: 9, three: 1}, {one: 2}, 5) == {two: 3, one: 1, three: 1}
    assert demand.share_places({one: 1, two: 1}, {}, 5) == {one: 1, two: 1}
    assert demand.share_places({one: 9}, {one: 2}, -1) == {}


def test_work_is_counted_once_over_all_queues_that_could_serve_it() -> None:
    groups = whole(*OF_CMS)
    rooms = {queue: QueueRoom(pilots=100) for queue in QUEUES}

    new = decided(DemandSituation(work=[DemandedWork(jobs=12, groups=groups)], rooms=alike(rooms)))

    assert new.total() == 12
    assert len(new) > 1, "queues that are equally good share the work"


def test_pilots_on_their_way_are_counted_against_the_work_of_any_queue() -> None:
    groups = whole(*OF_CMS)
    there = {OF_CMS[0]: 5, TargetGroup(vo="dune", queues=(QUEUES[0],)): 5}

    new = decided(
        DemandSituation(
            work=[DemandedWork(jobs=7, groups=groups)],
            rooms=alike({QUEUES[1]: QueueRoom(pilots=50)}),
            there=there,
        )
    )

    assert new == {OF_CMS[1]: 2}


def test_the_queue_with_the_highest_rank_is_filled_first() -> None:
    groups = whole(*OF_CMS)
    rooms = alike(dict.fromkeys(QUEUES, QueueRoom(pilots=4)))
    work = [DemandedWork(jobs=6, groups=groups, ranks={QUEUES[1]: 1.0, QUEUES[2]: 7.0})]

    new = decided(DemandSituation(work=work, rooms=rooms))

    assert new == {
        OF_CMS[2]: 4,
        OF_CMS[1]: 2,
    }


def test_a_vo_that_may_have_no_pilots_at_a_queue_closes_it_for_no_other() -> None:
    posts = {vo: TargetGroup(vo=vo, queues=(QUEUES[0],)) for vo in VOS}
    work = [DemandedWork(jobs=5, groups=whole(post)) for post in posts.values()]
    rooms = {("cms", QUEUES[0]): QueueRoom(pilots=0), ("dune", QUEUES[0]): QueueRoom(pilots=3)}

    assert decided(DemandSituation(work=work, rooms=rooms)) == {posts["dune"]: 3}


def test_each_work_has_its_own_order_of_queues() -> None:
    groups = OF_CMS[:2]
    fast, near = {QUEUES[0]: 2.0, QUEUES[1]: 1.0}, {QUEUES[1]: 0.0}
    work = [DemandedWork(jobs=2, groups=whole(*groups), ranks=ranks) for ranks in (fast, near)]
    rooms = alike(dict.fromkeys(QUEUES, QueueRoom(pilots=4)))

    assert decided(DemandSituation(work=work, rooms=rooms)) == dict.fromkeys(groups, 2)


def test_a_job_with_one_choice_is_not_crowded_out_by_one_with_two() -> None:
    here, there = OF_CMS[0], OF_CMS[1]
    work = [
        DemandedWork(jobs=3, groups=whole(here, there), ranks={QUEUES[0]: 1.0}),
        DemandedWork(jobs=3, groups=whole(here), ranks={QUEUES[0]: 1.0}),
    ]

    new = decided(
        DemandSituation(
            work=work, rooms=alike({QUEUES[0]: QueueRoom(pilots=3), QUEUES[1]: QueueRoom(pilots=3)})
        )
    )

    assert new == {here: 3, there: 3}


@pytest.mark.parametrize(
    ("waiting", "running", "room"), [(0, 0, 5), (5, 0, 0), (2, 3, 3), (0, 19, 1), (0, 30, 0), (9, 0, 0)]
)
def test_a_queue_takes_pilots_up_to_both_of_its_limits(waiting: int, running: int, room: int) -> None:
    assert QueueLimits(total=20, waiting=5).room(waiting=waiting, running=running) == room


def bad(minutes: float) -> Trial:
    """A pilot that was sent and went wrong so many minutes ago."""
    return Trial(
        sent_at=NOW - timedelta(minutes=minutes), known_at=NOW - timedelta(minutes=minutes), good=False
    )


def good(minutes: float) -> Trial:
    return Trial(sent_at=NOW - timedelta(minutes=minutes), known_at=NOW, good=True)


def ended_well(minutes: float) -> Trial:
    """A pilot whose jobs had ended well so many minutes ago."""
    return replace(bad(minutes), good=True)


@pytest.mark.parametrize(
    ("trials", "most"),
    [
        ([], None),
        ([good(10)], None),
        ([bad(1)], 0),
        ([bad(3)], 2),
        ([bad(3), bad(3.1), bad(3.2)], 2),
        ([bad(3), bad(6)], 0),
        ([bad(5), bad(8)], 2),
        ([bad(9), bad(13), bad(16), bad(20)], 0),
        ([bad(61), *(bad(61 + 3 * n) for n in range(30))], 2),
        ([bad(1), good(0.5)], None),
        ([bad(1), good(2)], None),
        ([bad(1), bad(1.1), ended_well(2)], 0),
    ],
    ids=str,
)
def test_the_pause_after_bad_pilots_doubles_until_a_good_result(
    trials: list[Trial], most: int | None
) -> None:
    assert most_to_send(trials, Pause(), NOW) == most


def test_a_queue_of_whose_pilots_half_are_good_gets_pilots_without_a_limit() -> None:
    """One node of two breaks each pilot at once, the other one is fine."""
    trials = [each for minutes in range(20) for each in (bad(minutes), ended_well(minutes + 0.5))]

    assert most_to_send(trials, Pause(), NOW) is None
    assert find_pause(trials, Pause(), NOW) is None


def test_a_queue_of_whose_pilots_few_are_good_gets_as_many_as_were_good_after_short_pauses() -> None:
    few = [ended_well(30 - number) for number in range(5)]
    many = [bad(20 - number / 2) for number in range(15)]

    assert most_to_send([*few, *many, bad(1)], Pause(), NOW) == 0
    assert most_to_send([*few, *many, good(25)], Pause(), NOW) == 5, (
        "a result since the last bad one was sent"
    )
    assert most_to_send([*few, *many[:3], bad(3)], Pause(), NOW) is None


def test_good_pilots_of_long_ago_do_not_keep_a_broken_queue_open() -> None:
    """They still run, but no new one can start."""
    still_running = [good(300 + number) for number in range(100)]
    broken = [bad(20 - number / 10) for number in range(20)]

    assert most_to_send([*still_running, *broken[:8]], Pause(), NOW) is None
    assert most_to_send([*still_running, *broken], Pause(first=timedelta(hours=1)), NOW) == 0


def test_pilots_on_trial_whose_outcome_is_not_known_are_not_sent_again() -> None:
    under_way = Trial(sent_at=NOW - timedelta(minutes=1), known_at=NOW, good=None, waits=True)
    older = replace(under_way, sent_at=NOW - timedelta(minutes=9))

    assert most_to_send([bad(4), under_way], Pause(), NOW) == 1
    assert most_to_send([bad(4), under_way, under_way, under_way], Pause(), NOW) == 0
    assert find_pause([bad(4), under_way, under_way], Pause(), NOW) is None
    assert most_to_send([bad(4), older, older], Pause(), NOW) == 2, "those were sent before it was bad"


def test_a_stamp_tells_whose_it_is_and_with_which_flags_its_pilot_was_sent() -> None:
    flags = ("--constraint=amd", "--mem=4000M")
    stamp = new_stamp("north", flags)

    assert (
        parse_stamp(stamp, "north")
        == SubmittedAs(kind=flags_digest(flags))
        != SubmittedAs(kind=flags_digest(()))
    )
    assert parse_stamp(stamp, "nort") is None
    assert parse_stamp("0123abcd", "north") is None
    assert parse_stamp(new_stamp("north", flags, "wms"), "north") == SubmittedAs(
        kind=flags_digest(flags), broker="wms"
    )
    assert parse_stamp(new_stamp("north", flags, "wms"), "wms") is None
    assert new_stamp("north", flags) != stamp


def test_jobs_of_one_core_share_the_slots_of_several() -> None:
    group = OF_CMS[0]
    rooms = alike({QUEUES[0]: QueueRoom(pilots=20)})

    assert decided(DemandSituation(work=[DemandedWork(jobs=8, groups={group: 1 / 4})], rooms=rooms)) == {
        group: 2
    }


def test_free_cores_come_before_pilots_that_wait_in_a_full_queue_and_before_a_better_rank() -> None:
    full, idle = OF_CMS[0], OF_CMS[1]
    rooms = alike({QUEUES[0]: QueueRoom(pilots=9, free=0), QUEUES[1]: QueueRoom(pilots=9, free=2)})
    work = [DemandedWork(jobs=3, groups=whole(full, idle), ranks={QUEUES[0]: 5.0})]

    waiting = decided(DemandSituation(work=work, rooms=rooms, late={full: 3}))
    none = decided(DemandSituation(work=work, rooms=rooms))

    assert waiting == {idle: 2}, "the third one is left to those that wait"
    assert none == {idle: 2, full: 1}


def test_queues_of_one_batch_queue_share_its_free_cores() -> None:
    groups = OF_CMS[:2]
    here = QueueRoom(pilots=9, free=2, batch_queue="farm/all")
    rooms = alike(dict.fromkeys(QUEUES[:2], here))
    work = [DemandedWork(jobs=4, groups=whole(*groups), ranks={QUEUES[0]: 1.0})]

    new = decided(DemandSituation(work=work, rooms=rooms))

    assert new == {groups[0]: 4}


def test_every_vo_gets_its_part_of_a_queue() -> None:
    groups = {vo: TargetGroup(vo=vo, queues=(QUEUES[0],)) for vo in VOS}
    rooms = alike({QUEUES[0]: QueueRoom(pilots=10)})

    work = [DemandedWork(jobs=jobs, groups=whole(groups[vo])) for vo, jobs in zip(VOS, (50, 5), strict=True)]

    assert decided(DemandSituation(work=work, rooms=rooms)) == {groups["cms"]: 5, groups["dune"]: 5}


def test_a_pilot_without_a_job_beside_good_ones_was_one_too_many() -> None:
    surplus = replace(bad(1), sent_at=NOW - timedelta(minutes=9), empty=True)
    broken = replace(surplus, empty=False)
    one_good = replace(good(10), known_at=NOW - timedelta(minutes=8))

    assert most_to_send([one_good, *[surplus] * 3], Pause(), NOW) is None
    assert most_to_send([one_good, *[broken] * 3], Pause(), NOW) == 2
    assert most_to_send([surplus], Pause(), NOW) == 0
    busy = replace(one_good, good=None)
    assert most_to_send([busy, surplus], Pause(), NOW) is None, "its jobs need not have ended"
    assert most_to_send([busy, broken], Pause(), NOW) == 0
    waiting = replace(busy, waits=True)
    assert most_to_send([waiting, surplus], Pause(), NOW) == 0, "it has no job"


def test_few_small_jobs_fill_one_slot_instead_of_one_in_each_of_many_queues() -> None:
    rooms = alike({queue: QueueRoom(pilots=20) for queue in QUEUES})
    work = [
        DemandedWork(jobs=2, groups=dict.fromkeys(OF_CMS, 1 / 8)),
        DemandedWork(jobs=3, groups=dict.fromkeys(OF_CMS, 1 / 4)),
    ]

    assert decided(DemandSituation(work=work, rooms=rooms)).total() == 1


@given(st.integers(1, 60), st.lists(st.integers(1, 8), min_size=1, max_size=4))
def test_no_pilot_is_one_too_many_where_slots_differ_in_size(jobs: int, sizes: list[int]) -> None:
    groups = {TargetGroup(vo="cms", queues=(f"A.B.org/ce/{n}",)): size for n, size in enumerate(sizes)}
    rooms = {("cms", group.queues[0]): QueueRoom(pilots=99) for group in groups}
    work = [DemandedWork(jobs=jobs, groups={group: 1 / size for group, size in groups.items()})]

    new = decided(DemandSituation(work=work, rooms=rooms))

    slots = sum(groups[group] * number for group, number in new.items())
    assert slots >= jobs
    assert all(slots - groups[group] < jobs for group, number in new.items() if number)


def test_jobs_that_a_full_queue_leaves_over_get_the_free_parts_of_new_slots_first() -> None:
    large, small = OF_CMS[:2]
    rooms = alike({QUEUES[0]: QueueRoom(pilots=9), QUEUES[1]: QueueRoom(pilots=5)})
    work = [DemandedWork(jobs=12, groups={large: 1 / 4, small: 1.0})]

    assert decided(DemandSituation(work=work, rooms=rooms)) == {large: 2, small: 4}
