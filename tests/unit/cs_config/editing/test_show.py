import pytest

from cs_config import validate
from cs_config.editing.show import is_queue, list_lines
from cs_config.errors import PathNotFound

CONFIG = validate.parse(
    """\
Resources:
  Sites:
    LCG.CERN.ch:
      Tag: [a]
      CEs:
        ce01:
          MaxRAM: 4000
          VOs: {cms: {MaxRAM: 8000}}
          Queues:
            long: {Tag: b, VO: [cms], Enabled: true}
Operations:
  Defaults: {Pools: {GraceTime: 5, RefreshInterval: 6}}
  cms: {Pools: {GraceTime: 7}}
""",
    "r.yaml",
)


def shown(path: str = "", vo: str | None = None) -> list[str]:
    return [f"{line}  # {line.origin}" for line in list_lines(CONFIG, path, vo)]


@pytest.mark.parametrize(
    "path",
    ["LCG.CERN.ch/ce01/long", "Resources/Sites/LCG.CERN.ch/CEs/ce01/Queues/long", "/LCG.CERN.ch/ce01/long/"],
)
def test_a_queue_for_a_vo_with_origins(path: str) -> None:
    assert shown(path, "CMS") == [
        "Enabled = true  # Queue, r.yaml:10",
        "MaxRAM = 8000  # CE VOs/cms, r.yaml:8",
        "Tag = [a, b]  # Site, r.yaml:4; Queue, r.yaml:10",
        "VO = [cms]  # Queue, r.yaml:10",
    ]


def test_a_queue_for_nobody_in_particular_has_what_it_inherits() -> None:
    assert shown("LCG.CERN.ch/ce01/long", "") == [
        "Enabled = true  # Queue, r.yaml:10",
        "MaxRAM = 4000  # CE, r.yaml:7",
        "Tag = [a, b]  # Site, r.yaml:4; Queue, r.yaml:10",
        "VO = [cms]  # Queue, r.yaml:10",
    ]
    assert is_queue(CONFIG, "LCG.CERN.ch/ce01/long")
    assert not is_queue(CONFIG, "LCG.CERN.ch/ce01")


def test_a_queue_that_the_vo_may_not_use_says_so() -> None:
    assert shown("LCG.CERN.ch/ce01/long", "atlas")[-1] == "(usable) = false  # not enabled, or not for atlas"


def test_a_ce_and_a_site_for_a_vo() -> None:
    assert shown("Resources/Sites/LCG.CERN.ch/CEs/ce01", "cms") == [
        "MaxRAM = 8000  # CE VOs/cms, r.yaml:8",
        "Tag = [a]  # Site, r.yaml:4",
    ]
    assert shown("Resources/Sites/LCG.CERN.ch", "cms") == ["Tag = [a]  # Site, r.yaml:4"]
    assert shown("LCG.CERN.ch/ce01", "cms") == shown("Resources/Sites/LCG.CERN.ch/CEs/ce01", "cms")
    assert shown("LCG.CERN.ch", "cms") == ["Tag = [a]  # Site, r.yaml:4"]


def test_the_tree_as_it_stands_in_the_file() -> None:
    assert shown("LCG.CERN.ch/ce01/long") == [
        "Tag = b  # r.yaml:10",
        "VO = [cms]  # r.yaml:10",
        "Enabled = true  # r.yaml:10",
    ]
    assert len(shown()) == 9
    assert shown("Operations/cms") == ["Pools/GraceTime = 7  # r.yaml:13"]


def test_options_for_a_vo() -> None:
    expected = ["RefreshInterval = 6  # r.yaml:12", "GraceTime = 7  # r.yaml:13"]
    assert shown("Operations/cms/Pools", "cms") == shown("Operations/Pools", "cms") == expected
    assert shown("Operations/Defaults/Pools", "dune") == [
        "GraceTime = 5  # r.yaml:12",
        "RefreshInterval = 6  # r.yaml:12",
    ]


def test_what_is_not_there_is_named_with_a_suggestion() -> None:
    with pytest.raises(PathNotFound, match=r"did you mean Resources/Sites/LCG\.CERN\.ch\?"):
        list_lines(CONFIG, "Resources/Sites/LCG.CERM.ch")
    with pytest.raises(PathNotFound):
        list_lines(CONFIG, "LCG.CERN.ch/ce01/lon", "cms")


def test_a_single_value_is_shown_alone_and_a_text_that_looks_like_a_number_in_quotes() -> None:
    config = validate.parse('Resources: {Sites: {A: {Old: "8000", New: 8000, Soft: [el9, "9", true]}}}')
    assert [str(line) for line in list_lines(config, "Resources/Sites/A")] == [
        'Old = "8000"',
        "New = 8000",
        'Soft = [el9, "9", true]',
    ]
    assert [str(line) for line in list_lines(config, "Resources/Sites/A/New")] == ["8000"]
