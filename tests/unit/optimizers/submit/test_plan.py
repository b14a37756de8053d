import json
from collections.abc import Mapping, Sequence
from dataclasses import replace

import pytest

from cs_config.options import bounds
from optimizers.description import jdl, parametric
from optimizers.submit import checking, plan
from optimizers.submit.plan import Draft, GivenSource, PlanTooLarge
from pilotage.service import routing
from requirements.errors import InvalidJob
from tests.support.factories.submitted_jobs import ANN, grid

JDL = '[ Executable = "run.sh"; Arguments = "%(year)s"; InputSandbox = {"run.sh", "sha256:ab", "LFN:/x/y"}; ]'


def drafts(source: str | Mapping[str, object]) -> list[Draft]:
    return [
        plan.complete_draft(each) for each in plan.read_drafts(GivenSource(content=source, name="job.jdl"))
    ]


def build_requests(found: Sequence[Draft], count: int = 1) -> list[list[Draft]]:
    """The descriptions of each request, as often as they are sent."""
    return [
        [run.draft for run in runs for _ in range(run.copies)] for runs in plan.build_requests(found, count)
    ]


def test_files_of_the_sandbox_are_found_beside_the_description() -> None:
    (draft,) = drafts(JDL)
    assert draft.files == ("run.sh",)
    assert draft.text == JDL


def test_files_in_one_text_are_separated_by_commas() -> None:
    (draft,) = drafts('[ Executable = "run.sh"; InputSandbox = "run.sh, 12:30.txt, LFN:/x"; ]')
    assert draft.files == ("run.sh", "12:30.txt")


def test_files_of_all_jobs_of_a_parametric_one_are_sent() -> None:
    text = "Executable: x\nInputSandbox: [run.sh, '%(F)s']\nParameters.F: [[data.txt, LFN:/x], more.txt]\n"
    (draft,) = drafts(text)
    assert draft.files == ("run.sh", "data.txt", "more.txt")


def test_yaml_may_hold_several_descriptions() -> None:
    found = drafts("- Executable: a\n- Executable: b\n")
    assert [draft.content["Executable"] for draft in found] == ["a", "b"]
    assert [draft.text for draft in found] == [None, None]


def test_several_parameters_give_each_combination() -> None:
    (draft,) = drafts(JDL)
    varied = plan.complete_draft(
        plan.add_parameters(draft, {"year": ["2015", "2016"], "seed": ["1", "2", "3"]})
    )
    assert varied.jobs == 6
    assert varied.content["Parameters.year"] == ["2015"] * 3 + ["2016"] * 3
    assert varied.content["Parameters.seed"] == ["1", "2", "3"] * 2


def test_a_job_that_has_parameters_already_is_not_varied() -> None:
    (draft,) = drafts("Executable: a\nParameters: 3\n")
    with pytest.raises(InvalidJob, match="Parameters of its own"):
        plan.add_parameters(draft, {"A": ["1"]})


def test_copies_go_out_a_thousand_at_a_time() -> None:
    found = drafts("Executable: a\n")
    assert [sum(draft.jobs for draft in request) for request in build_requests(found, 2500)] == [
        1000,
        1000,
        500,
    ]


def test_texts_that_take_long_to_parse_go_out_in_several_requests(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bounds, "DESCRIBED_TOKENS", 20)
    found = [draft for name in "abcdef" for draft in drafts(f"Executable: {name}\nStdOutput: o\n")]
    assert [len(request) for request in build_requests(found, 1)] == [3, 3]
    assert [len(request) for request in build_requests(found[:1], 50)] == [50], "parsed once"


def test_a_request_is_no_longer_than_the_service_reads(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bounds, "BODY", 6_000)
    [short, long] = [drafts(f"Executable: a\nArguments: {'x' * size}\n")[0] for size in (1, 2_000)]
    for found, count in (([short, long], 9), ([long], 9)):
        requests = [*build_requests(found, count)]
        assert sum(map(len, requests)) == count * len(found)
        for request in requests:
            assert len(json.dumps({"jdls": [each.text for each in request]})) <= 6_000
    [members] = drafts(f"Executable: a\nParameters: {['y' * 500] * 20}\n")
    pieces = [each for [each] in build_requests([members], 1)]
    assert sum(each.jobs for each in pieces) == 20
    for each in pieces:
        assert len(json.dumps({"jobs": [jdl.description_as_json(each.content)]})) <= 6_000


def test_a_request_has_no_more_values_than_the_service_reads() -> None:
    digits = plan.complete_draft(
        plan.read_drafts(GivenSource(content={"Executable": "a", "Values": [1] * 3_000}))[0]
    )
    [text] = drafts("Executable: '" + "," * 99 + "'\n")
    for draft, field in ((digits, "jobs"), (text, "jdls")):
        requests = [*build_requests([draft], 1_000)]
        assert sum(map(len, requests)) == 1_000
        for request in requests:
            sources = [each.text or jdl.description_as_json(each.content) for each in request]
            routing.check_size(json.dumps({field: sources}, separators=(",", ":")).encode())


def test_values_of_different_jobs_go_out_in_several_requests(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bounds, "RECORD_VALUES", 30)
    found = [draft for name in "abcdef" for draft in drafts(f"Executable: {name}\nTag: {[*'12345678']}\n")]
    found = [replace(draft, text=None) for draft in found]
    requests = [*build_requests(found, 1)]
    assert [len(request) for request in requests] == [3, 3]
    for request in requests:
        sources = [jdl.description_as_json(each.content) for each in request]
        assert checking.check_sources(grid(), ANN, sources)
    with pytest.raises(InvalidJob, match="36 values in different jobs are too many"):
        checking.check_sources(grid(), ANN, [jdl.description_as_json(each.content) for each in found])


def test_expressions_of_many_jobs_go_out_in_several_requests(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bounds, "EXPRESSION_TOKENS", 20)
    text = "Executable: a\nRequirements: other.A > {}\n"  # five words and signs, seven with place and value
    found = [draft for number in range(6) for draft in drafts(text.format(number))]
    assert [len(request) for request in build_requests(found, 1)] == [4, 2]
    [draft] = drafts(text.format("%s") + "Parameters: 6\n")
    requests = [*build_requests([draft], 1)]
    assert [sum(each.jobs for each in request) for request in requests] == [2, 2, 2]
    for request in requests:
        sources = [jdl.description_as_json(each.content) for each in request]
        assert checking.check_sources(grid(), ANN, sources)


def test_members_with_long_expressions_are_split_from_those_with_short_ones(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(bounds, "EXPRESSION_TOKENS", 40)
    values = ["true"] * 6 + ["other.A > 1 && other.B > 2 && other.C > 3"] * 2
    [draft] = drafts(f"Executable: a\nRequirements: '%s'\nParameters: {values}\n")
    requests = [*build_requests([draft], 1)]
    pieces = [each.content["Parameters"] for request in requests for each in request]
    assert pieces == [["true"] * 5, ["true", *values[-1:]], values[-1:]]
    for request in requests:
        sources = [jdl.description_as_json(each.content) for each in request]
        assert checking.check_sources(grid(), ANN, sources)


def test_values_of_many_members_go_out_in_several_requests(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bounds, "FILLED_VALUES", 20)
    [draft] = drafts("Executable: a\nTags: [a, '%s']\nArguments: x\nParameters: 8\n")
    assert [sum(each.jobs for each in some) for some in build_requests([draft], 1)] == [4, 4]


def test_jobs_with_different_sandboxes_do_not_share_a_request() -> None:
    found = drafts(JDL) + drafts("Executable: a\n")
    assert [request[0].files for request in build_requests(found)] == [("run.sh",), ()]


def test_an_expression_travels_as_its_text() -> None:
    (draft,) = drafts('[ Executable = "a"; Requirements = other.Memory > 3; ]')
    sent = jdl.description_as_json(draft.content)
    assert "Memory" in str(sent["Requirements"])


def test_the_sandbox_belongs_to_the_vo_that_the_description_names() -> None:
    (draft,) = drafts("Executable: x\nVirtualOrganization: dune\nInputSandbox: run.sh\n")
    assert draft.sandbox == (("run.sh",), 0, "dune")


def test_a_long_parametric_description_goes_out_in_pieces_that_make_the_same_jobs() -> None:
    text = "Executable: a\nArguments: '%n %s %(A)s'\nParameters: 12000\nParameterStart: 7\nParameters.A: "
    [draft] = drafts(text + str(list(range(12_000))))
    requests = list(build_requests([draft], 1))
    assert [sum(each.jobs for each in request) for request in requests] == [5000, 5000, 2000]
    pieces = [each.content for request in requests for each in request]
    whole, *parts = map(parametric.split_description, (draft.content, *pieces))
    members = [values for each in parts for values in parametric.expand_parameters(each, most=5000)]
    assert members == parametric.expand_parameters(whole, most=12_000)
    assert {tuple(each.template.items()) for each in parts} == {tuple(whole.template.items())}


def make_plan(
    *sources: GivenSource, count: int = 1, is_bounded: bool = True, **parameters: list[str]
) -> plan.SubmissionPlan:
    return plan.plan_submission(sources, parameters=parameters, count=count, is_bounded=is_bounded)


def test_a_plan_names_the_descriptions_the_files_and_the_requests() -> None:
    given = [
        GivenSource(content=JDL),
        GivenSource(content=JDL, place=1),
        GivenSource(content="- {Executable: a}\n- {Executable: b}\n"),
        GivenSource(content={"Executable": "c"}),
    ]
    found = make_plan(*given, count=1500)
    assert found.descriptions == 5
    assert [each.source for each in found.pieces] == [0, 1, None, None, 3]
    assert [each.job for each in found.pieces[2:4]] == [{"Executable": "a"}, {"Executable": "b"}]
    assert [(each.parts, each.files, each.place) for each in found.requests] == [
        ([(0, 1000)], ("run.sh",), 0),
        ([(0, 500)], ("run.sh",), 0),
        ([(1, 1000)], ("run.sh",), 1),
        ([(1, 500)], ("run.sh",), 1),
        ([(2, 1000)], (), 0),
        ([(2, 500), (3, 500)], (), 0),
        ([(3, 1000)], (), 0),
        ([(4, 1000)], (), 0),
        ([(4, 500)], (), 0),
    ]
    assert [each.is_text for each in found.requests] == [True] * 4 + [False] * 5


@pytest.mark.parametrize(
    ("source", "count", "parameters"),
    [
        ("Executable: a\nArguments: " + "a, " * 110_000, 1, {}),
        ({"Executable": "a", "Tags": ["x"] * 150_000}, 1, {}),
        ("Executable: a\n", 1, {"A": ["1"] * 400, "B": ["2"] * 400}),
        ("Executable: a\n", 1, {"A": ["1"] * 300, "B": ["2" * 50_000] * 300}),
        ("- {Executable: a, Parameters: 60000}\n- {Executable: b, Parameters: 60000}\n", 1, {}),
        ("[" + "{Executable: a}, " * 20 + "]", 1_000_000, {}),
        ({"Executable": "a", "Parameters": 1001, "InputSandbox": ["%n"] * 500}, 1, {}),
        ({"Executable": "a", "Parameters": 1001, "InputSandbox": ["x" * 10_000 + "%n"]}, 1, {}),
    ],
    ids=[
        *("words", "values", "combinations", "characters", "members", "requests"),
        *("names of files", "characters of names"),
    ],
)
def test_a_service_refuses_plans_that_take_long(
    source: str | dict[str, object], count: int, parameters: dict[str, list[str]]
) -> None:
    with pytest.raises(PlanTooLarge):
        make_plan(GivenSource(content=source), count=count, **parameters)


def test_a_client_plans_what_a_service_would_not() -> None:
    found = make_plan(GivenSource(content="Executable: a\nParameters: 110000\n"), is_bounded=False)
    assert sum(each.jobs for each in found.requests) == 110_000


@pytest.mark.parametrize(
    ("text", "executables"),
    [
        ('[ Executable = "fit.sh"; ]', ("fit.sh",)),
        ('[ Executable = "./fit.sh"; InputSandbox = {"data.txt"}; ]', ("./fit.sh",)),
        ("Executable: '%s.sh'\nParameters: [a, b]\n", ("a.sh", "b.sh")),
        ('[ Executable = "fit.sh"; InputSandbox = {"../fit.sh"}; ]', ()),
        ('[ Executable = "fit.sh"; InputSandbox = {"LFN:/x/fit.sh"}; ]', ()),
        ('[ Executable = "fit.sh"; InputSandbox = {"sha256:ab"}; ]', ()),
        ('[ Executable = "/bin/date"; ]', ()),
        ('[ Executable = "bin/fit.sh"; ]', ()),
    ],
)
def test_a_plan_names_executables_that_the_sandbox_lacks(text: str, executables: tuple[str, ...]) -> None:
    [request] = make_plan(GivenSource(content=text)).requests
    assert request.executables == executables


def test_jobs_whose_executables_may_lie_in_different_directories_do_not_share_a_request() -> None:
    sources = [GivenSource(content="Executable: fit.sh\n", place=place) for place in (0, 0, 1)]
    assert [each.jobs for each in make_plan(*sources).requests] == [2, 1]


def test_words_of_arguments_are_named_a_bounded_number() -> None:
    text = "Executable: python3\nArguments: 'fit.py \"in.txt\" %s'\nParameters: 5000\n"
    [request] = make_plan(GivenSource(content=text)).requests
    assert request.mentioned[:3] == ("fit.py", "in.txt", "0")
    assert len(request.mentioned) == 100


def test_a_plan_warns_of_placeholders_without_values() -> None:
    text = '[ Executable = "fit.sh"; Arguments = "%(mass)s %(seed)s +%s"; Requirements = other.x % (2) > 1; ]'
    assert [each[:19] for each in make_plan(GivenSource(content=text)).warnings] == [
        "Arguments: %(mass)s",
        "Arguments: %(seed)s",
    ]
    assert [each[:19] for each in make_plan(GivenSource(content=text), mass=["1"]).warnings] == [
        "Arguments: %(seed)s"
    ]


def test_descriptions_that_name_each_other_are_planned_as_objects_without_their_files() -> None:
    text = (
        "- {JobName: a, Executable: a.sh, inputSandbox: [in.txt, 'LFN:/x']}\n"
        "- {JobName: b, Executable: b.sh, After: a}\n"
    )
    found = make_plan(GivenSource(content=text))
    assert found.is_linked
    assert [(each.files, each.executables) for each in found.requests] == [
        (("in.txt",), ("a.sh",)),
        ((), ("b.sh",)),
    ]
    assert [each.job and each.job["InputSandbox"] for each in found.pieces] == [["LFN:/x"], []]
    assert [each.job and "inputSandbox" in each.job for each in found.pieces] == [False, False]
    assert not make_plan(GivenSource(content="Executable: a.sh\nAfter: [12, 13]\n")).is_linked
