from cs_config import glue, queue_classes, validate
from cs_config.address import QueueAddress

TREE = """\
Resources:
  Sites:
    S:
      CEs:
        C:
          MaxRAM: 4000
          Queues:
            a: {Tag: [x, Y]}
            b: {Tag: [y, X], maxram: 4.0e3}
            c: {MaxRAM: 2000}
            d: {Enabled: false}
            e: {VO: [atlas]}
            f: {VOs: {cms: {Tag: [x, y]}}}
"""


def queues(vo: str) -> list[str]:
    config = validate.parse(TREE)
    return ["".join(queue.queue for queue in each.queues) for each in queue_classes.queue_classes(config, vo)]


def test_queues_that_no_requirement_can_tell_apart_are_one_class() -> None:
    assert queues("cms") == ["abf", "c"]
    assert queues("dune") == ["ab", "c", "f"]


def test_a_vo_has_classes_of_what_it_may_use_only() -> None:
    assert queues("atlas") == ["ab", "c", "e", "f"]


def test_the_digest_is_the_same_everywhere() -> None:
    values = {"MaxRAM": 4000, "Tag": ("x", "y"), "Enabled": True, "Name": "Ä"}
    assert (
        queue_classes.digest(values)
        == queue_classes.digest({"NAME": "ä", "enabled": True, "TAG": ("Y", "x", "X"), "maxram": 4000.0})
        == "ab9b29265dc824913185e80b5883edf21bace2021b76c22dc5320c64dceb6ff2"
    )


def test_a_list_of_one_is_its_value() -> None:
    assert queue_classes.digest({"A": ("x",)}) == queue_classes.digest({"A": "x"})


def test_true_is_not_one_and_a_number_is_not_its_text() -> None:
    digests = {queue_classes.digest({"A": value}) for value in (True, 1, "1", "true")}
    assert len(digests) == 4


def test_classes_are_computed_once() -> None:
    config = validate.parse(TREE)
    assert queue_classes.queue_classes(config, "cms") is queue_classes.queue_classes(config, "CMS")


def test_the_values_of_a_class_are_those_of_its_queues() -> None:
    config = validate.parse(TREE)
    first = queue_classes.queue_classes(config, "cms")[0]
    assert first.values == glue.ad({"MaxRAM": 4000, "Tag": ("x", "Y")})
    assert first.queues[0] == QueueAddress(site="S", ce="C", queue="a")
