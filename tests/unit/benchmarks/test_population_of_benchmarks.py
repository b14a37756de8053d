from benchmarks import lhcb
from cs_config import validate


def test_sizes_of_task_queues_add_up_and_none_is_empty():
    sizes = lhcb.sizes(700, 50_000)

    assert len(sizes) == 700
    assert sum(sizes) == 50_000
    assert min(sizes) >= 1


def test_classes_are_distinct_and_the_same_for_the_same_seed():
    classes = lhcb.requirement_classes(lhcb.BASE + 20, seed=3)

    assert len({each.digest for each in classes}) == lhcb.BASE + 20
    assert classes == lhcb.requirement_classes(lhcb.BASE + 20, seed=3)


def test_every_queue_that_pilots_come_from_is_in_the_tree():
    config = validate.parse(lhcb.tree(limited=2))

    stated = {f"{queue['Site']}/{queue['GridCE']}/{queue['Queue']}" for queue in lhcb.queues()}

    assert stated == {str(address) for address in config.addresses}
