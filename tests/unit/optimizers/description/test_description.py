import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cs_config import validate
from cs_config.errors import ConfigError
from cs_config.options.operations import options_for
from cs_config.options.options import VoOptions
from optimizers.description import description, jdl
from optimizers.description.description import JobDescription
from requirements.classad.expression import Expression
from requirements.errors import InvalidJob
from requirements.record import Record
from requirements.values import Unevaluated


def options(text: str = "") -> VoOptions:
    return options_for(validate.parse(f"Resources: {{}}\n{text}", "test"), "lhcb")


def parse(operations: VoOptions | None = None, **raw: object) -> JobDescription:
    return description.parse_description({"Executable": "a", **raw}, operations or options())


def problems(operations: VoOptions | None = None, **raw: object) -> dict[str, str]:
    with pytest.raises(InvalidJob) as caught:
        parse(operations, **raw)
    return {problem.path: str(problem) for problem in caught.value.problems}


@pytest.mark.parametrize(
    ("name", "value", "becomes"),
    [("CPUTime", 10**9, 500_000), ("CPUTime", 5, 100), ("Priority", 11.5, 10.0), ("Priority", -3, 0.0)],
)
def test_cpu_time_and_priority_may_be_clamped_into_their_bounds(
    name: str, value: float, becomes: float
) -> None:
    clamping = options("Operations: {Defaults: {JobDescription: {Clamp: true, CPUTime: {min: 99.5}}}}")
    read = parse(clamping, **{name: value})
    assert (read.cpu_time if name == "CPUTime" else read.priority) == becomes
    assert name in problems(**{name: value})


def test_other_keywords_are_never_clamped() -> None:
    clamping = options("Operations: {Defaults: {JobDescription: {Clamp: true, MaxRAM: {max: 4000}}}}")
    assert "MaxRAM" in problems(clamping, MaxRAM=8000)


@pytest.mark.parametrize("name", ["Site", "Sites", "site", "SITES"])
def test_names_are_read_without_case_in_singular_and_plural(name: str) -> None:
    assert parse(**{name: "LCG.CERN.ch"}).sites == ("LCG.CERN.ch",)


@pytest.mark.parametrize(
    ("name", "value", "attribute", "expected"),
    [
        ("BannedSite", ["a", "b"], "banned_sites", ("a", "b")),
        ("Tag", "GPU, SSD,GPU", "tags", ("GPU", "SSD")),
        ("UserPriority", "3", "priority", 3.0),
        ("Priority", 10, "priority", 10.0),
        ("CPUTime", "86400", "cpu_time", 86400),
        ("CPUTime", 4e3, "cpu_time", 4000),
        ("Platforms", ["slc6"], "platforms", ("slc6",)),
        ("GridCE", "ce01.cern.ch", "grid_ces", ("ce01.cern.ch",)),
        ("InputData", ["LFN:/lhcb/a", "/lhcb/b"], "input_data", ("/lhcb/a", "/lhcb/b")),
        ("Arguments", ["a b", "c"], "arguments", "'a b' c"),
        ("Arguments", 5, "arguments", "5"),
        ("Arguments", ["", "x"], "arguments", "'' x"),
        ("OutputSandbox", "std.out", "output_sandbox", ("std.out",)),
        ("WholeNode", "yes", "whole_node", True),
        ("ExecutionEnvironment", {"A": 1}, "environment", (("A", "1"),)),
        ("Environment", ["B=x=y", "A=1"], "environment", (("A", "1"), ("B", "x=y"))),
        ("NumberOfProcessors", 8, "processors", 8),
        ("GPUs", 1, "gpus", 1),
        ("VirtualOrganization", "lhcb", "vo", "lhcb"),
    ],
)
def test_values_are_read_in_the_forms_that_users_write(
    name: str, value: object, attribute: str, expected: object
) -> None:
    assert getattr(parse(**{name: value}), attribute) == expected


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("CPUTime", "long", '"long", allowed is a whole number'),
        ("CPUTime", True, "allowed is a whole number"),
        ("CPUTime", 1, "allowed is at least 100"),
        ("CPUTime", 10**9, "allowed is at most 500000"),
        ("CPUTime", float("nan"), "allowed is a whole number"),
        ("Priority", -1, "allowed is at least 0"),
        ("Priority", 11, "allowed is at most 10"),
        ("NumberOfProcessors", 0, "allowed is at least 1"),
        ("MaxRAM", -4, "allowed is at least 0"),
        ("Site", "LCG CERN", "is not a valid name"),
        ("Site", {"a": 1}, "allowed is a text"),
        ("InputData", "relative/path", "is not a logical file name"),
        ("InputData", "LFN:/a//b", "is not a logical file name"),
        ("WholeNode", "perhaps", "allowed is true or false"),
        ("Environment", ["novalue"], "allowed is NAME=value"),
        ("Environment", {"1A": "x"}, "is not a valid name of a variable"),
        ("JobName", "a\0b", "NUL"),
        ("Arguments", "it's", "cannot be split into words"),
        ("Executable", " ", "is empty"),
        ("Executable", None, "no value"),
        ("Requirements", 5, "allowed is a record"),
        ("Requirements", {"a": 1, "A": 2}, "named twice"),
        ("SubmitPool", "x", "set by the system"),
    ],
)
def test_values_that_a_keyword_cannot_have_are_refused(name: str, value: object, message: str) -> None:
    assert any(message in text for text in problems(**{name: value}).values())


def test_all_problems_come_at_once() -> None:
    with pytest.raises(InvalidJob) as caught:
        description.parse_description(
            {"CPUTime": "x", "Sitte": "a", "Priority": 99, "Requirements": {"a": None}}, options()
        )
    assert {problem.path for problem in caught.value.problems} == {
        "Executable",
        "CPUTime",
        "Sitte",
        "Priority",
        "Requirements/a",
    }


def test_an_unknown_keyword_names_the_one_that_was_meant() -> None:
    assert "did you mean Executable?" in problems(Exekutable="x")["Exekutable"]
    assert "did you mean Parameters?" in problems(Paramters=3)["Paramters"]


def test_the_configuration_may_allow_further_keywords() -> None:
    extended = options("Operations: {Defaults: {JobDescription: {Extra: [Wiki]}}}")
    read = parse(extended, wiki="http://…")
    assert read.extra == {"wiki": "http://…"}
    assert description.stored_body(read)["wiki"] == "http://…"
    assert "Wiki" in problems(extended, Wikki="x")["Wikki"]


def test_the_configuration_sets_defaults_and_bounds() -> None:
    text = """
Operations:
  Defaults:
    JobDescription:
      CPUTime: {default: 1000, max: 2000}
      JobType: {default: User}
      NumberOfProcessors: {type: number, max: 8}
      AllowedJobTypes: [User, Test]
"""
    assert parse(options(text)).cpu_time == 1000
    assert parse(options(text)).job_type == "User"
    found = problems(options(text), CPUTime=2001, NumberOfProcessors=9, JobType="Wild")
    assert set(found) == {"CPUTime", "NumberOfProcessors", "JobType"}
    assert "NumberOfProcessors" in problems(options(text), NumberOfProcessors=0)


def test_a_keyword_in_two_spellings_is_refused() -> None:
    assert "named twice, the other time as Site" in problems(Site="a", Sites="b")["Sites"]


@pytest.mark.parametrize(
    ("raw", "path"),
    [
        ({"MinNumberOfProcessors": 4, "MaxNumberOfProcessors": 2}, "MinNumberOfProcessors"),
        ({"NumberOfProcessors": 8, "MaxNumberOfProcessors": 4}, "NumberOfProcessors"),
        ({"MinRAM": 4000, "MaxRAM": 2000}, "MinRAM"),
        ({"MinRAM": 1000, "RAMPerCore": 1000, "NumberOfProcessors": 4, "MaxRAM": 4999}, "MinRAM"),
        ({"RAMPerCore": 3000, "MinNumberOfProcessors": 2, "MaxRAM": 5000}, "MinRAMPerCore"),
        ({"Site": "A.x", "BannedSites": "a.X"}, "Site"),
        ({"Site": ["A.x", "B.x"], "BannedSites": ["B.x", "C.x", "A.x"]}, "Site"),
    ],
)
def test_keywords_that_contradict_each_other_are_refused(raw: dict[str, object], path: str) -> None:
    assert set(problems(**raw)) == {path}


@pytest.mark.parametrize(
    "raw",
    [
        {"Site": ["A.x", "B.x"], "BannedSites": "A.x"},
        {"Site": "ANY", "BannedSites": "A.x"},
        {"Site": "A.x", "BannedSites": "ANY"},
    ],
)
def test_a_job_that_bans_some_of_its_sites_is_accepted(raw: dict[str, object]) -> None:
    assert parse(**raw).states("banned_sites")


def test_a_default_that_bans_the_stated_site_is_left_to_the_configuration() -> None:
    banning = options("Operations: {Defaults: {JobDescription: {BannedSites: {default: A.x}}}}")
    assert parse(banning, Site="A.x").sites == ("A.x",)


def test_required_texts_have_a_bound_that_stored_jobs_may_exceed() -> None:
    required = {"Requirements": {"CPUModel": "x" * 4097}}
    assert problems(**required) == {
        "Requirements/CPUModel": "Requirements/CPUModel: has 4097 characters, allowed are 4096",
    }
    stored = description.parse_description(
        {"Executable": "/bin/true", **required}, options(), is_accepted=True
    )
    assert isinstance(stored.requirements, Record)


def test_requirements_are_a_record_or_an_expression() -> None:
    assert isinstance(parse(Requirements={"Memory": 4000}).requirements, Record)
    assert isinstance(parse(Requirements="other.Memory > 4000").requirements, Expression)


def test_declared_requirements_are_checked() -> None:
    declared = options("Operations: {Defaults: {JobDescription: {Memory: {type: number, min: 0}}}}")
    assert set(problems(declared, Requirements={"Memory": "much"})) == {"Requirements/Memory"}
    assert set(problems(declared, Requirements={"Memory": -1})) == {"Requirements/Memory"}


def test_a_body_reads_back_to_the_same_description() -> None:
    written = parse(
        Arguments=["a b"],
        Site=["A.B.ch", "C.D.ch"],
        Environment={"X": "1"},
        Requirements={"Tag": ["a", "b"], "Memory": 4000},
        WholeNode=True,
        MinRAM=2000,
        Priority=3,
        InputData=["LFN:/lhcb/a"],
    )
    stored = json.loads(json.dumps(description.stored_body(written)))
    assert description.parse_description(stored, options()) == written


_NUMBERS = ("GPUs", "MinRAM", "MinRAMPerCore", "Priority", "FirstEvent", "Seed")
_stated = st.fixed_dictionaries(
    {},
    optional={
        **{name: st.integers(0, 2) for name in _NUMBERS},
        "CPUTime": st.sampled_from((86_400, 1_000)),
        "WholeNode": st.booleans(),
        "JobName": st.sampled_from(("", "a")),
        "StdOutput": st.sampled_from(("", "out")),
        "Site": st.sampled_from(([], ["A.B.ch"])),
        "Tags": st.sampled_from(([], ["x"])),
    },
)
_configured = st.fixed_dictionaries(
    {},
    optional={
        **{name: st.integers(0, 2) for name in _NUMBERS},
        "MaxRAM": st.integers(0, 2),
        "CPUTime": st.sampled_from((86_400, 1_000)),
        "WholeNode": st.booleans(),
        "JobName": st.just("configured"),
        "StdOutput": st.just("configured"),
        "Site": st.just("C.D.ch"),
        "Tags": st.just("y"),
    },
)


def with_defaults(defaults: dict[str, object]) -> VoOptions:
    declared = {name: {"default": default} for name, default in defaults.items()}
    return options(f"Operations: {json.dumps({'Defaults': {'JobDescription': declared}})}")


@given(_stated, _configured, _configured)
def test_what_was_stated_stays_whatever_defaults_are_configured(
    raw: dict[str, object], configured: dict[str, object], later: dict[str, object]
) -> None:
    try:
        before, after = with_defaults(configured), with_defaults(later)
    except ConfigError:
        return  # defaults that contradict each other are no configuration
    written = description.parse_description({"Executable": "a", "MaxRAM": 0, **raw}, before)
    stored = json.loads(json.dumps(description.stored_body(written)))
    assert description.parse_description(stored, before) == written
    afterwards = description.parse_description(stored, after)
    for attribute in written.stated:
        assert getattr(afterwards, attribute) == getattr(written, attribute)


@pytest.mark.parametrize("name", ["JobName", "JobGroup", "JobType"])
def test_lists_show_short_texts(name: str):
    assert parse(**{name: "n" * 255})
    with pytest.raises(InvalidJob, match=f"{name}: .*has 256 characters, allowed are 255"):
        parse(**{name: "n" * 256})


def test_a_job_waits_for_so_many_others_at_most() -> None:
    assert parse(After=list(range(1, 1001)))
    with pytest.raises(InvalidJob, match="1,001 jobs are too many, allowed are 1000"):
        parse(After=list(range(1, 1002)))


@pytest.mark.parametrize("name", ["Tags", "Site", "BannedSites", "Platform", "GridCE", "JobPath"])
def test_names_of_a_keyword_have_a_bound_in_number_and_length(name: str) -> None:
    assert parse(**{name: [f"x{number}" for number in range(1000)]})
    with pytest.raises(InvalidJob, match="1001 names are too many, allowed are 1000"):
        parse(**{name: ",".join(f"x{number}" for number in range(1001))})
    with pytest.raises(InvalidJob, match="has 256 characters, allowed are 255"):
        parse(**{name: "x" * 256})


def test_a_body_says_what_is_run_and_not_whose_it_is() -> None:
    assert description.stored_body(parse(Owner="ann", OwnerGroup="g", VO="lhcb")) == {"Executable": "a"}


FURTHER = "Operations: {Defaults: {JobDescription: {Extra: [Memory, Need]}}}"


def of_jdl(text: str) -> JobDescription:
    return description.parse_description(
        jdl.read_descriptions(f'Executable = "a"; {text}', "job.jdl")[0], options(FURTHER)
    )


@pytest.mark.parametrize(
    ("text", "seen"),
    [
        ("Memory = 2000; Requirements = other.MaxRAM > MY.Memory", "other.MaxRAM > 2000"),
        ("CPUTime = 3600; Requirements = other.CPUTime > MY.MaxCPUTime", "other.CPUTime > 3600"),
        ("Requirements = other.CPUTime > MY.CPUTime", "other.CPUTime > 86400"),
        ('Site = "A.B.ch"; Requirements = other.Near == MY.Sites', 'other.Near == "A.B.ch"'),
        ('Tags = {"x", "y"}; Requirements = member(other.T, MY.Tag)', 'member(other.T, {"x", "y"})'),
        ("Requirements = other.GPUs >= MY.GPUs", "other.GPUs >= 0"),
        ("Requirements = other.A =?= MY.JobGroup", "other.A =?= undefined"),
        ("Memory = 2; Need = MY.Memory * 3; Requirements = other.A > MY.Need", "other.A > (2 * 3)"),
    ],
)
def test_requirements_may_ask_for_the_jobs_own_values(text: str, seen: str) -> None:
    read = of_jdl(text)
    assert isinstance(read.requirements, Expression)
    assert read.requirements.text == seen
    body = json.loads(json.dumps(description.stored_body(read)))
    assert body["Requirements"] == read.requirements.original_text
    again = description.parse_description(body, options(FURTHER))
    assert (again.requirements, description.stored_body(again)) == (read.requirements, body)


def test_whose_a_job_is_stands_beside_its_description() -> None:
    with pytest.raises(InvalidJob, match=r"MY\.OwnerGroup: the owner of a job.*\(job.jdl:1:"):
        of_jdl("Requirements = other.A == MY.OwnerGroup")


def test_a_rank_is_kept_with_the_job() -> None:
    read = of_jdl("Memory = 2; Rank = other.SI00 * MY.Memory - other.GlueCEStateWaitingJobs")
    assert read.rank == Expression(text="other.SI00 * 2 - other.GlueCEStateWaitingJobs")
    assert description.stored_body(read)["Rank"] == "other.SI00 * MY.Memory - other.GlueCEStateWaitingJobs"
    assert parse(Rank=5).rank == Expression(text="5")
    assert parse(rank="other.SI00").rank == Expression(text="other.SI00")


@pytest.mark.parametrize(
    ("rank", "message"),
    [
        ("random()", "the function random is not allowed"),
        ("MY.Rank + 1", "refers to itself: Rank -> Rank"),
        (["a"], "allowed is an expression"),
        (True, "allowed is an expression"),
    ],
)
def test_a_rank_that_is_no_safe_expression_is_refused(rank: object, message: str) -> None:
    assert message in problems(Rank=rank)["Rank"]


@pytest.mark.parametrize(
    ("text", "place"),
    [
        ('CPUTime =\n  "much";', (2, 3)),
        ("Requirements = [\n Memory = 1;\n A = B];", (1, 34)),
        ('\n\nSite = {"a b"};', (3, 8)),
        ("Nothing = 1;", (1, 29)),
        ("Requirements = other.A >\n random(3);", (2, 2)),
        ("\nRequirements = other.A > 1 && random(3);", (2, 31)),
        ("\nRequirements = other.X > MY.CPUTime && foo(3);", (2, 16)),
    ],
)
def test_what_is_wrong_with_a_value_is_told_with_its_place(text: str, place: tuple[int, int]) -> None:
    with pytest.raises(InvalidJob) as refused:
        of_jdl(text)
    [problem] = refused.value.problems
    assert (problem.file, problem.line, problem.column) == ("job.jdl", *place)


def test_a_wrong_expression_is_named_beside_other_problems() -> None:
    found = problems(Requirements={"expression": "other.X >="}, Priority=99)
    assert found.keys() == {"Requirements", "Priority"}


@pytest.mark.parametrize("value", [True, False])
def test_requirements_may_be_the_expression_true_or_false(value: bool) -> None:  # a parameter
    text = str(value).lower()
    assert parse(Requirements=value).requirements == Expression(text=text)
    assert of_jdl(f"Requirements = {text};").requirements == Expression(text=text)
    assert description.stored_body(parse(Requirements=value))["Requirements"] == text


@pytest.mark.parametrize("name", ["ParameterStart", "parameterstep.A"])
def test_a_start_or_step_without_parameters_is_no_unknown_keyword(name: str) -> None:
    suffix = name.removeprefix("ParameterStart").removeprefix("parameterstep")
    assert problems(**{name: 1})[name] == f"{name}: has no effect without Parameters{suffix}"


def test_an_expression_in_a_record_is_shown_as_written() -> None:
    found = problems(Requirements={"Memory": Unevaluated("2 * 1000")})
    assert found["Requirements/Memory"].startswith("Requirements/Memory: 2 * 1000 (Unevaluated; as text")
