"""Dynamic attributes count as undefined from the end of their time on; everything else stays."""

from datetime import UTC, datetime

import pytest

from cs_config import validate
from cs_config.classes.queue_classes import queue_classes
from cs_config.errors import ConfigError
from cs_config.tree.address import QueueAddress
from cs_config.tree.configuration import Configuration

QUEUE = QueueAddress(site="S", ce="C", queue="Q")
TEXT = """
Resources:
  Sites:
    S:
      FreeCPUs: 7
      CEs:
        C:
          Queues:
            Q:
              update_time: 1000
              expiry_time: 300
              GlueCEStateFreeCPUs: 1
              FreeCPUs: 2
              GlueCEPolicyMaxCPUTime: 100
              VOs: {cms: {TotalJobs: 4}, atlas: {TotalJobs: 5, update_time: 1000, expiry_time: 900}}
            R: {FreeCPUs: 3, update_time: 1100, expiry_time: 100}
            T: {GlueCEStateFreeCPUs: 9}
"""


def config(text: str = TEXT) -> Configuration:
    return validate.parse(text, "resources.yaml", 4)


def at(seconds: float, whole: Configuration | None = None) -> Configuration:
    return (whole or config()).at_moment(datetime.fromtimestamp(seconds, UTC))


def test_until_its_end_everything_counts() -> None:
    assert at(1199).values(QUEUE, "lhcb") == {
        "GlueCEStateFreeCPUs": 1,
        "FreeCPUs": 2,
        "GlueCEPolicyMaxCPUTime": 100,
    }


def test_after_its_end_what_is_dynamic_is_undefined_also_where_a_level_above_has_it() -> None:
    assert at(1300).values(QUEUE, "lhcb") == {"GlueCEPolicyMaxCPUTime": 100}


def test_the_times_themselves_are_no_attributes_of_a_resource() -> None:
    assert "update_time" in config().parameters(QUEUE, "lhcb")
    assert "update_time" not in config().values(QUEUE, "lhcb")


def test_each_section_expires_at_its_own_time() -> None:
    other = QueueAddress(site="S", ce="C", queue="R")
    assert "FreeCPUs" not in at(1200).values(other, "lhcb")
    assert at(1200).values(QUEUE, "lhcb")["FreeCPUs"] == 2


def test_without_times_nothing_expires() -> None:
    forever = QueueAddress(site="S", ce="C", queue="T")
    assert at(9e9).values(forever, "lhcb") == {"FreeCPUs": 7, "GlueCEStateFreeCPUs": 9}


def test_values_of_a_vo_go_with_the_queue_unless_they_have_a_time_of_their_own() -> None:
    assert at(1299).values(QUEUE, "cms")["TotalJobs"] == 4
    assert "TotalJobs" not in at(1301).values(QUEUE, "cms")
    assert at(1301).values(QUEUE, "atlas")["TotalJobs"] == 5
    assert "TotalJobs" not in at(1901).values(QUEUE, "atlas")


def test_a_configuration_in_which_nothing_expires_or_has_expired_is_itself() -> None:
    plain = config("Resources: {Sites: {S: {CEs: {C: {Queues: {Q: {FreeCPUs: 1}}}}}}}")
    assert at(9e9, plain) is plain
    whole = config()
    assert at(1000, whole) is whole
    assert at(1000, at(9e9, whole)) is whole
    assert at(9e9, whole) is at(8e9, at(9e9, whole))
    assert at(1250, at(9e9, whole)).expiries == 1


def test_each_moment_is_a_newer_edition_of_the_same_version() -> None:
    editions = [(each.version, each.expiries) for each in map(at, (1000, 1200, 1300, 1900))]
    assert editions == [(4, 0), (4, 1), (4, 2), (4, 3)]


def test_queue_classes_are_those_of_the_moment() -> None:
    def classes(seconds: float) -> set[tuple[str, ...]]:
        return {tuple(q.queue for q in each.queues) for each in queue_classes(at(seconds, same), "lhcb")}

    same = config(
        "Resources: {Sites: {S: {CEs: {C: {Queues: {"
        "A: {FreeCPUs: 1, update_time: 1000, expiry_time: 300}, B: {}}}}}}}"
    )
    assert classes(1299) == {("A",), ("B",)}
    assert classes(1300) == {("A", "B")}


def test_what_has_expired_is_known_with_its_place() -> None:
    assert config().expired(QUEUE, "lhcb") == {}
    gone = at(1300).expired(QUEUE, "cms")
    assert sorted(gone) == ["freecpus", "gluecestatefreecpus", "totaljobs"]
    assert (gone["freecpus"].value, gone["freecpus"].line) == (2, 13)


def test_the_configuration_may_say_what_is_dynamic() -> None:
    text = TEXT.replace("Resources:", "Resources:\n  Computing: {DynamicAttributes: [Load, GlueCEP*]}")
    assert at(1300, config(text)).values(QUEUE, "lhcb") == {"GlueCEStateFreeCPUs": 1, "FreeCPUs": 2}


@pytest.mark.parametrize("wrong", ["7", "[7]", "['*']", "[a*b]", "{Load: 1}"])
def test_something_else_than_names_of_dynamic_attributes_is_refused(wrong: str) -> None:
    with pytest.raises(ConfigError, match=r"DynamicAttributes: a list of names, .* is needed here"):
        config(f"Resources: {{Computing: {{DynamicAttributes: {wrong}}}}}")


def test_one_time_without_the_other_is_warned_of() -> None:
    text = "Resources: {Sites: {S: {CEs: {C: {Queues: {Q: {FreeCPUs: 1, expiry_time: 300}}}}}}}"
    report = validate.report(text, "resources.yaml")
    [warning] = report.warnings
    assert str(warning) == (
        "Resources/Sites/S/CEs/C/Queues/Q/expiry_time: nothing expires without update_time beside it "
        "(resources.yaml:1)"
    )
    assert report.configuration is not None
    assert report.configuration.moments == ()
