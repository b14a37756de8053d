import random
from collections import Counter
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
works = st.builds(
    DemandedWork, jobs=st.integers(1, 12), posts=st.frozensets(st.sampled_from(POSTS), min_size=1, max_size=5)
)
rooms_of_vos = st.dictionaries(
    st.tuples(st.sampled_from(VOS), st.sampled_from(QUEUES)),
    st.builds(QueueRoom, pilots=st.integers(0, 15), rank=st.none() | st.integers(0, 2).map(float)),
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
    return Counter(demand.decide_pilots(situation, random.Random(0)))


def room_of(situation: DemandSituation, queue: str, *vos: str) -> int:
    return max(
        (situation.rooms[vo, queue].pilots for vo in vos or VOS if (vo, queue) in situation.rooms), default=0
    )


def sent_to(new: Counter[TargetGroup], queue: str, *vos: str) -> int:
    return sum(number for post, number in new.items() if post.queues == (queue,) and post.vo in vos)


def served(situation: DemandSituation, new: Counter[TargetGroup]) -> int:
    """Jobs that find a pilot of their own, found job by job; slow, and another way than the program's."""
    slots = [post for post in POSTS for _ in range(situation.there.get(post, 0) + new[post])]
    taken: dict[int, frozenset[TargetGroup]] = {}

    def place(posts: frozenset[TargetGroup], tried: set[int]) -> bool:
        for number, post in enumerate(slots):
            if post in posts and number not in tried:
                tried.add(number)
                if number not in taken or place(taken[number], tried):
                    taken[number] = posts
                    return True
        return False

    return sum(place(work.posts, set()) for work in situation.work for _ in range(work.jobs))


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
def test_every_new_pilot_has_a_job_that_nobody_else_takes(situation: DemandSituation) -> None:
    new = decided(situation)

    assert served(situation, new) == served(situation, Counter()) + new.total()


@given(situations)
def test_no_job_is_left_to_which_one_more_pilot_could_be_sent(situation: DemandSituation) -> None:
    new = decided(situation)
    now = served(situation, new)

    for post in POSTS:
        [queue] = post.queues
        is_room = sent_to(new, queue, *VOS) < room_of(situation, queue) and sent_to(
            new, queue, post.vo
        ) < room_of(situation, queue, post.vo)
        if is_room and new[post] < situation.most.get(post, 10**6):
            assert served(situation, new + Counter({post: 1})) == now


@given(
    st.lists(
        st.builds(
            DemandedWork,
            jobs=st.integers(1, 12),
            posts=st.frozensets(st.sampled_from(POSTS + BROKERED), min_size=1, max_size=5),
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
        DemandedWork(jobs=2, posts=frozenset({anywhere, there})),
        DemandedWork(jobs=3, posts=frozenset({there})),
    ]

    assert decided(DemandSituation(work=work, rooms=alike(rooms))) == {anywhere: 2, there: 3}


def test_work_is_counted_once_over_all_queues_that_could_serve_it() -> None:
    posts = frozenset(TargetGroup(vo="cms", queues=(queue,)) for queue in QUEUES)
    rooms = {queue: QueueRoom(pilots=100) for queue in QUEUES}

    new = decided(DemandSituation(work=[DemandedWork(jobs=12, posts=posts)], rooms=alike(rooms)))

    assert new.total() == 12
    assert len(new) > 1, "queues that are equally good share the work"


def test_pilots_on_their_way_are_counted_against_the_work_of_any_queue() -> None:
    posts = frozenset(TargetGroup(vo="cms", queues=(queue,)) for queue in QUEUES)
    there = {TargetGroup(vo="cms", queues=(QUEUES[0],)): 5, TargetGroup(vo="dune", queues=(QUEUES[0],)): 5}

    new = decided(
        DemandSituation(
            work=[DemandedWork(jobs=7, posts=posts)],
            rooms=alike({QUEUES[1]: QueueRoom(pilots=50)}),
            there=there,
        )
    )

    assert new == {TargetGroup(vo="cms", queues=(QUEUES[1],)): 2}


def test_the_queue_with_the_highest_rank_is_filled_first() -> None:
    posts = frozenset(TargetGroup(vo="cms", queues=(queue,)) for queue in QUEUES)
    rooms = {
        QUEUES[0]: QueueRoom(pilots=4),
        QUEUES[1]: QueueRoom(pilots=4, rank=1.0),
        QUEUES[2]: QueueRoom(pilots=4, rank=7.0),
    }

    new = decided(DemandSituation(work=[DemandedWork(jobs=6, posts=posts)], rooms=alike(rooms)))

    assert new == {
        TargetGroup(vo="cms", queues=(QUEUES[2],)): 4,
        TargetGroup(vo="cms", queues=(QUEUES[1],)): 2,
    }


def test_a_vo_that_may_have_no_pilots_at_a_queue_closes_it_for_no_other() -> None:
    posts = {vo: TargetGroup(vo=vo, queues=(QUEUES[0],)) for vo in VOS}
    work = [DemandedWork(jobs=5, posts=frozenset({post})) for post in posts.values()]
    rooms = {("cms", QUEUES[0]): QueueRoom(pilots=0), ("dune", QUEUES[0]): QueueRoom(pilots=3)}

    assert decided(DemandSituation(work=work, rooms=rooms)) == {posts["dune"]: 3}


def test_the_rank_that_one_vo_sees_is_not_that_of_another() -> None:
    work = [
        DemandedWork(jobs=2, posts=frozenset(TargetGroup(vo=vo, queues=(queue,)) for queue in QUEUES[:2]))
        for vo in VOS
    ]
    rooms = {
        ("cms", QUEUES[0]): QueueRoom(pilots=4, rank=2.0),
        ("cms", QUEUES[1]): QueueRoom(pilots=4, rank=1.0),
        ("dune", QUEUES[0]): QueueRoom(pilots=4, rank=1.0),
        ("dune", QUEUES[1]): QueueRoom(pilots=4, rank=2.0),
    }

    assert decided(DemandSituation(work=work, rooms=rooms)) == {
        TargetGroup(vo="cms", queues=(QUEUES[0],)): 2,
        TargetGroup(vo="dune", queues=(QUEUES[1],)): 2,
    }


def test_a_job_with_one_choice_is_not_crowded_out_by_one_with_two() -> None:
    here, there = TargetGroup(vo="cms", queues=(QUEUES[0],)), TargetGroup(vo="cms", queues=(QUEUES[1],))
    work = [
        DemandedWork(jobs=3, posts=frozenset({here, there})),
        DemandedWork(jobs=3, posts=frozenset({here})),
    ]

    new = decided(
        DemandSituation(
            work=work, rooms=alike({QUEUES[0]: QueueRoom(pilots=3, rank=1.0), QUEUES[1]: QueueRoom(pilots=3)})
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


@pytest.mark.parametrize(
    ("trials", "most"),
    [
        ([], None),
        ([good(10)], None),
        ([bad(1)], 0),
        ([bad(3)], 1),
        ([bad(3), bad(3.1), bad(3.2)], 1),
        ([bad(3), bad(6)], 0),
        ([bad(5), bad(8)], 1),
        ([bad(9), bad(13), bad(16), bad(20)], 0),
        ([bad(61), *(bad(61 + 3 * n) for n in range(30))], 1),
        ([bad(1), good(0.5)], None),
        ([bad(1), good(2)], 0),
    ],
    ids=str,
)
def test_the_pause_after_bad_pilots_doubles_until_a_good_one_was_sent(
    trials: list[Trial], most: int | None
) -> None:
    assert most_to_send(trials, Pause(), NOW) == most


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
