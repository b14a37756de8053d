"""What a pilot says about the node that it runs on."""

from pathlib import Path

import pytest

from matcher.request import match_request
from pilotage.fabric.pilot import arguments, offer
from pilotage.fabric.pilot.node import facts
from pilotage.fabric.pilot.settings import JobFilters, QueuePlace, Slot

PLACE = QueuePlace("A.B.ch", "ce", "long")
WORDS = ["--site", "A.B.ch", "--ce", "ce", "--queue", "long"]
CPUINFO = """\
processor\t: 0
model name\t: AMD EPYC   7543 32-Core Processor
flags\t\t: sse4_2 avx fma avx
processor\t: 1
model name\t: AMD EPYC   7543 32-Core Processor
flags\t\t: sse4_2 avx fma avx
"""


def measured(path: Path, text: str) -> dict[str, object]:
    (path / "cpuinfo").write_text(text)
    return facts.measure_facts(path / "cpuinfo")


def test_processors_that_are_alike_have_a_model_and_flags(tmp_path: Path) -> None:
    found = measured(tmp_path, CPUINFO)
    assert found["CPUModel"] == "AMD EPYC 7543 32-Core Processor"
    assert found["CPUFlags"] == ["avx", "fma", "sse4_2"]
    assert isinstance(found["Memory"], int)
    assert isinstance(found["Cores"], int)


@pytest.mark.parametrize(
    "text",
    [
        "",
        CPUINFO.replace("7543", "7742", 1).replace("fma", "fma4", 1),
        "flags: " + " ".join(f"f{n}" for n in range(501)),
        "flags: " + "x" * 41,
    ],
)
def test_what_is_not_certain_is_left_out(tmp_path: Path, text: str) -> None:
    assert measured(tmp_path, text).keys().isdisjoint({"CPUModel", "CPUFlags"})


def test_without_a_list_of_processors_the_rest_is_told(tmp_path: Path) -> None:
    assert "Memory" in facts.measure_facts(tmp_path / "none")


@pytest.mark.parametrize("parameters", [{}, {"NodeAttributes/CPUFlags": "unknown"}])
def test_flags_are_reported_for_levels_and_as_a_list_where_the_queue_declares_them(
    tmp_path: Path, parameters: dict[str, str]
) -> None:
    found = measured(tmp_path, CPUINFO)
    request = offer.make_offer(PLACE, Slot(), JobFilters(), parameters, found).at(0)
    read = match_request.read_resource(request)
    assert read.resource.cpu_features == {"avx", "fma", "sse4_2"}
    assert read.node_facts["CPUFlags"] == (("avx", "fma", "sse4_2") if parameters else "avx fma sse4_2")
    assert not read.warnings


def test_more_flags_than_one_text_may_have_are_a_list() -> None:
    flags = [f"avx512_{number:030}" for number in range(120)]
    request = offer.make_offer(PLACE, Slot(), JobFilters(), {}, {"CPUFlags": flags}).at(0)
    assert match_request.read_resource(request).node_facts["CPUFlags"] == tuple(flags)


def test_a_file_of_the_site_says_more(tmp_path: Path) -> None:
    file = tmp_path / "facts.json"
    file.write_text('{"GlueHostBenchmarkSI00": 501, "Memory": 8000}')
    said = arguments.parser().parse_args([*WORDS, "--facts", str(file)])
    slot = arguments.read_settings(said, {"PILOTAGE_URL": "http://x"}).slot
    request = offer.make_offer(PLACE, slot, JobFilters(), {"MaxRAM": 2000}, {"Memory": 16000, "Cores": 8}).at(
        0
    )
    told = {"GlueHostBenchmarkSI00": 501, "Memory": 8000, "Cores": 8, "MaxRAM": 2000}
    assert request["NodeFacts"] == told
    assert match_request.read_resource(request).node_facts == request["NodeFacts"]


@pytest.mark.parametrize(("text", "said"), [("[1]", "list, allowed is an object"), ("{", "--facts ")])
def test_a_file_that_says_something_else_is_wrong_usage(tmp_path: Path, text: str, said: str) -> None:
    file = tmp_path / "facts.json"
    file.write_text(text)
    words = arguments.parser().parse_args([*WORDS, "--facts", str(file)])
    with pytest.raises(ValueError, match=said):
        arguments.read_settings(words, {"PILOTAGE_URL": "http://x"})
