"""What a pilot presents, read: all spellings, all mistakes."""

import pytest

from matcher.request import match_request
from requirements.errors import InvalidResource
from requirements.resource import Resource


def _resource(**said: object) -> Resource:
    return match_request.read_resource({"CPUTime": 100, **said}).resource


def _problems(**said: object) -> list[str]:
    with pytest.raises(InvalidResource) as caught:
        match_request.read_resource({"CPUTime": 100, **said})
    return [problem.path for problem in caught.value.problems]


@pytest.mark.parametrize("spelling", ["Platform", "Platforms", "platform", "PLATFORMS"])
def test_names_are_singular_or_plural_in_any_case(spelling: str) -> None:
    assert _resource(**{spelling: "CentOS7"}).platforms == {"centos7"}


def test_values_are_one_or_a_list_and_compare_without_case() -> None:
    assert _resource(JobType="User") == _resource(JobType=["user"])
    assert _resource(JobType=["User", "MCSim"]).job_types == {"user", "mcsim"}


@pytest.mark.parametrize("word", ["ANY", "any", "*A-n_y!", ["x", "Any"]])
def test_any_is_no_condition(word: object) -> None:
    assert _resource(Site=word).sites is None
    assert _resource(Tag=word).tags is None


@pytest.mark.parametrize("nothing", ["", [], [""], None])
def test_nothing_is_no_condition_but_no_tag_either(nothing: object) -> None:
    assert _resource(Site=nothing).sites is None
    assert _resource(Tag=nothing).tags == frozenset()


def test_tags_may_be_written_as_dirac_does() -> None:
    for text in ("GPU,Fast", "GPU, Fast", "['GPU', 'Fast']", '["GPU", Fast]'):
        assert _resource(Tag=text).tags == {"gpu", "fast"}
        assert _resource(Tag=["GPU", "Fast", "x"], RequiredTag=text).required_tags == {"gpu", "fast"}
    assert _resource(Tag="[GPU, 'a', \"b\"]").tags == {"gpu", "a", "b"}


def test_cores_are_offered_as_tags_and_as_a_number() -> None:
    resource = _resource(NumberOfProcessors=3)
    assert resource.tags == {"1processors", "2processors", "3processors", "multiprocessor"}
    assert resource.processors == 3
    assert _resource(NumberOfProcessors=1).tags == {"1processors"}
    assert _resource().processors is None


def test_a_whole_node_is_offered_as_a_tag_too() -> None:
    assert _resource(WholeNode=True).offers_whole_node
    assert _resource(Tag="WholeNode").offers_whole_node
    assert not _resource(WholeNode=False).offers_whole_node
    assert not _resource(WholeNode="False").offers_whole_node


def test_of_several_cpu_times_any_will_do() -> None:
    assert match_request.read_resource({"CPUTime": [360, 1800]}).resource.cpu_time == 1800


@pytest.mark.parametrize("wrong", [1800.0, "1800.5", "-1", "", "9" * 17, True, None, [], -1, [100, "x"]])
def test_a_cpu_time_is_a_whole_number_of_seconds(wrong: object) -> None:
    assert set(_problems(CPUTime=wrong)) == {"CPUTime"}


def test_numbers_may_be_text_as_in_diracs_configuration() -> None:
    said = {"CPUTime": "1800", "NumberOfProcessors": "8", "MaxRAM": " 2048 ", "WholeNode": "False"}
    resource = match_request.read_resource(said).resource
    assert (resource.cpu_time, resource.processors, resource.max_ram) == (1800, 8, 2048)


def test_without_a_cpu_time_nothing_can_be_matched() -> None:
    with pytest.raises(InvalidResource, match="CPUTime"):
        match_request.read_resource({"Site": "A.B.ch"})


@pytest.mark.parametrize(
    ("name", "wrong"),
    [
        ("MaxRAM", 2048.5),
        ("MaxRAM", "2048 MB"),
        ("MaxRAM", -1),
        ("NumberOfProcessors", 0),
        ("NumberOfProcessors", 1025),
        ("GPUs", True),
        ("WholeNode", "perhaps"),
        ("Tag", [1, 2]),
        ("Site", 7),
        ("Platform", {"a": 1}),
    ],
)
def test_wrong_types_are_refused_by_name(name: str, wrong: object) -> None:
    assert _problems(**{name: wrong}) == [name]


def test_all_problems_are_told_at_once() -> None:
    assert set(_problems(MaxRAM="x", GPUs="y", Site=1)) == {"MaxRAM", "GPUs", "Site"}


def test_a_required_tag_has_to_be_offered() -> None:
    assert _resource(Tag=["a", "b"], RequiredTag="b").required_tags == {"b"}
    assert _problems(Tag=["a"], RequiredTag="b") == ["RequiredTag"]
    assert _problems(Tag="ANY", RequiredTag="b") == ["RequiredTag"]
    assert _resource(NumberOfProcessors=8, RequiredTag="8Processors").required_tags == {"8processors"}


def test_unknown_names_are_kept_with_a_warning_and_never_refused() -> None:
    read = match_request.read_resource({"CPUTime": 100, "Foo": {"deep": [1]}, "Platfrom": "x"})
    assert read.attributes == {"Foo": {"deep": [1]}, "Platfrom": "x"}
    assert "did you mean Platform?" in "".join(read.warnings)
    assert len(read.warnings) == 2


def test_what_diracs_pilots_say_besides_needs_no_warning() -> None:
    assert (
        match_request.read_resource({"CPUTime": 1, "DIRACVersion": "v9", "PilotBenchmark": 10.0}).warnings
        == ()
    )


def test_a_name_given_twice_must_say_the_same() -> None:
    assert _resource(Tag="a", tags="a").tags == {"a"}
    assert _problems(Tag="a", Tags="b") == ["Tags"]


def test_where_the_pilot_is_keeps_its_spelling() -> None:
    read = match_request.read_resource({"CPUTime": 1, "Site": "LCG.CERN.ch", "GridCE": "ce", "Queue": "long"})
    assert (read.site, read.ce, read.queue) == ("LCG.CERN.ch", "ce", "long")
    several = match_request.read_resource({"CPUTime": 1, "Site": ["A", "B"]})
    assert several.site == "", "several places are none"


def test_pools_are_ids_and_what_is_none_is_left_out_with_a_warning() -> None:
    read = match_request.read_resource({"CPUTime": 1, "SubmitPool": ["a" * 64, "nonsense"]})
    assert read.pools == {"a" * 64}
    assert len(read.warnings) == 1


def test_of_many_unknown_names_the_first_few_only_are_explained() -> None:
    read = match_request.read_resource({"CPUTime": 1, **{f"Platfrom{number}": 1 for number in range(50)}})
    assert len(read.warnings) == 50
    assert sum("did you mean Platform?" in warning for warning in read.warnings) == 20


def test_more_pools_than_a_statement_takes_are_refused() -> None:
    pools = [f"{number:064x}" for number in range(3001)]
    assert _problems(SubmitPool=pools) == ["SubmitPool"]
    assert len(match_request.read_resource({"CPUTime": 1, "SubmitPool": pools[1:]}).pools) == 3000


def test_equal_resources_are_one_for_the_memory_of_the_index() -> None:
    one, two = _resource(Site="A.B.ch", Tag=["x", "y"]), _resource(site=["a.b.CH"], Tags=["y", "x"])
    assert one == two
    assert hash(one) == hash(two)
    assert one != _resource(Site="A.B.ch", Tag=["X", "y"])  # expressions over tags compare them literally
