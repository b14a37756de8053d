import pytest

from cs_config.editing import show

TREE = {
    "Resources": {"Sites": {"LCG.A.org": {"CEs": {"ce1": {"maxRam": 1, "Queues": {"long": {}}}}}}},
    "Operations": {"Defaults": {"JobDescription": {"Memory": {"type": "number"}}}},
}
QUEUE = "Resources/Sites/LCG.A.org/CEs/ce1/Queues/long/"


def completed(written: str) -> list[str]:
    beginning, _, _ = written.rpartition("/")
    return [
        each.path[len(beginning) + bool(beginning) :] for each in show.complete_path(TREE, written, ["cms"])
    ]


@pytest.mark.parametrize(
    ("written", "names"),
    [
        ("", ["Resources/", "Operations/", "Registry/"]),
        ("/res", ["Resources/"]),
        ("Resources/Sites/lcg", ["LCG.A.org/"]),
        (f"{QUEUE}VOs/", ["cms/"]),
        (f"{QUEUE}MaxSc", ["MaxScratch"]),
        (f"{QUEUE}VOs/cms/MaxRAMP", ["MaxRAMPerCore"]),
        (f"{QUEUE}Throttle/Pol", ["Policy"]),
        ("Operations/", ["Defaults/", "cms/"]),
        ("Operations/cms/JobScheduling/MaxR", ["MaxRescheduling"]),
        ("Operations/cms/JobScheduling/ShareCorrections/x/TimeSlices/w/T", ["TimeSpan"]),
        ("Operations/cms/JobDescription/Memory/res", ["resource"]),
        ("Registry/Groups/g/Job", ["JobShare"]),
        ("Nothing/of/this/", []),
        ("a//b", []),
    ],
)
def test_a_path_goes_on_with_what_is_there_and_what_means_something(written: str, names: list[str]):
    assert completed(written) == names


def test_a_name_that_is_there_keeps_its_spelling_and_gets_its_meaning():
    [found] = show.complete_path(TREE, "Resources/Sites/LCG.A.org/CEs/ce1/maxram", [])[:1]
    assert found.path.endswith("/maxRam")
    assert "memory that a job may use" in found.meaning


def test_declared_names_stand_in_the_section_itself():
    assert "Declared/" not in completed("Operations/Defaults/JobDescription/")
    assert "Memory/" in completed("Operations/Defaults/JobDescription/")
