from xml.etree import ElementTree as Xml

import pytest

from pilotage.fabric.batch.batch_system import BatchJob, JobResources, SubmissionRefused
from pilotage.plugins.arc.arc import describe

NASTY = """"'</Name><Path>/bin/sh</Path>&amp;&#10;)(executable="x") é"""


def described(*environments: str, **asked: object) -> Xml.Element:
    values = {"stamp": "north-12345678", "queue": "long", "script": "#!/bin/sh\n", **asked}
    return Xml.fromstring(describe(BatchJob(**values), environments))  # type: ignore[arg-type] # noqa: S314 - ours


def said(description: Xml.Element, name: str) -> list[str | None]:
    return [each.text for each in description.iter(f"{{http://www.eu-emi.eu/es/2010/12/adl}}{name}")]


def test_whatever_a_value_is_it_stays_one_value() -> None:
    description = described(f"ENV/X {NASTY}", stamp=NASTY, queue=NASTY)
    assert said(description, "QueueName") == [NASTY]
    assert said(description, "Name")[0] == NASTY
    assert said(description, "Path") == ["wrapper"]
    assert said(description, "Option") == NASTY.split()


def test_cores_are_slots_of_one_host_and_memory_is_shared_among_them() -> None:
    description = described(resources=JobResources(cores=3, memory=1000, wall_time=7200))
    assert said(description, "NumberOfSlots") == said(description, "SlotsPerHost") == ["3"]
    assert said(description, "IndividualPhysicalMemory") == [str(334 * 1024 * 1024)]
    assert said(description, "WallTime") == ["7200"]
    assert said(description, "ExclusiveExecution") == []


def test_a_whole_node_is_asked_for_alone() -> None:
    assert said(described(resources=JobResources(whole_node=True)), "ExclusiveExecution") == ["true"]


def test_environments_of_the_system_come_before_those_of_the_job() -> None:
    description = described("ENV/RTE", flags=("ENV/GPU 2",))
    assert [name for name in said(description, "Name") if "ENV" in str(name)] == ["ENV/RTE", "ENV/GPU"]
    assert said(description, "Option") == ["2"]


@pytest.mark.parametrize("flag", ["--constraint=x", "", " ", "ENV/X\x01", "ENV/X a\x07b", "(executable=x)"])
def test_a_flag_that_is_no_runtime_environment_is_refused(flag: str) -> None:
    with pytest.raises(SubmissionRefused, match="no runtime environment"):
        described(flags=(flag,))


def test_gpus_are_refused_as_long_as_arc_has_no_word_for_them() -> None:
    with pytest.raises(SubmissionRefused, match="runtime environment"):
        described(resources=JobResources(gpus=1))
