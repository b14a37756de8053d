"""The work that one submission may cause is bounded before it is done."""

import difflib
from collections import Counter
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

import pytest

from cs_config import validate
from cs_config.options import bounds
from optimizers.description import jdl, parametric
from optimizers.submit import checking
from optimizers.submit.checking import Source
from optimizers.submit.submitter import Submitter
from requirements import errors
from requirements.errors import MOST_HINTS, MOST_PROBLEMS, InvalidJob, NotAllowed
from taskqueue.errors import QuotaExceeded
from tests.support.factories.submitted_jobs import ANN, GRID, OPERATOR, grid


@pytest.fixture
def expanded(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many jobs parametric descriptions were expanded to, one after the other."""
    found: list[int] = []
    expand = parametric.expand_parameters

    def counting(split: parametric.SplitDescription, *, most: int) -> list[parametric.MemberValues]:
        members = expand(split, most=most)
        found.append(len(members))
        return members

    monkeypatch.setattr(parametric, "expand_parameters", counting)
    return found


@pytest.fixture
def searched(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The words for which a name that is like them was looked for."""
    found: list[str] = []

    def counting(word: str, *args: Any, **more: Any) -> list[str]:
        found.append(word)
        return difflib.get_close_matches(word, *args, **more)

    monkeypatch.setattr(errors, "get_close_matches", counting)
    return found


def refused(*sources: checking.Source, submitter: Submitter = ANN) -> list[str]:
    with pytest.raises(InvalidJob) as error:
        checking.check_sources(grid(), submitter, sources)
    return [str(problem) for problem in error.value.problems]


def test_more_jobs_than_a_submission_may_make_are_refused_before_one_is_made(expanded: list[int]) -> None:
    texts = [f'Executable = "a"; Parameters = 10000; JobGroup = "{number}";' for number in range(150)]
    [problem] = refused(*texts)
    assert problem.startswith("jobs: 1500000 jobs are too many")
    assert str(bounds.SUBMITTED_JOBS) in problem
    assert expanded == []


def test_the_same_holds_for_many_descriptions_in_one_text_and_for_one_text_sent_often(
    expanded: list[int],
) -> None:
    [in_one] = refused("\n".join(["- {Executable: a, Parameters: 10000}"] * 80 + ["- {Executable: b}"]))
    assert "800001 jobs are too many" in in_one
    [often] = refused(*['Executable = "a"; Parameters = 10000;'] * 11)
    assert "110000 jobs are too many" in often
    assert expanded == []


def test_the_limit_of_the_vo_is_told_where_one_description_makes_too_many(expanded: list[int]) -> None:
    few = grid(f"{GRID}Operations: {{Defaults: {{JobDescription: {{MaxParametricJobs: 500}}}}}}\n")
    with pytest.raises(InvalidJob) as error:
        checking.check_sources(few, ANN, [{"Executable": "a", "Parameters": 600}])
    assert "600 jobs are too many, allowed are 500 (MaxParametricJobs)" in str(error.value)
    assert expanded == []


def test_it_is_asked_for_room_before_jobs_are_made(expanded: list[int]) -> None:
    asked: list[Mapping[tuple[str, str], int]] = []

    def full(declared: Mapping[tuple[str, str], int]) -> None:
        asked.append(declared)
        raise QuotaExceeded("no room")

    texts = [f"{{Executable: a, Parameters: 1000, JobGroup: g{number}}}" for number in range(3)]
    with pytest.raises(QuotaExceeded):
        checking.check_sources(grid(), ANN, [*texts, "{Executable: b}"], require_room=full)
    assert asked == [Counter({("lhcb", "ann"): 3000})]
    assert expanded == []


def test_what_is_declared_is_at_least_what_is_made() -> None:
    for raw in (
        {"Executable": "%s %n", "Parameters": ["a", "bcd", 2.5]},
        {"Executable": "x", "Arguments": "%(A)s-%(A)s %s", "Parameters.A": 12, "ParameterStart.A": 7},
        {"Executable": "x", "Parameters": "3", "InputData": ["/a/%n", {"deep": "%s"}]},
        {"Executable": "x", "Arguments": "%n", "Parameters.n": ["long" * 30, "b"]},
    ):
        split = parametric.split_description(raw)
        declared = split.volume
        made = parametric.expand_parameters(split, most=100)
        texts = [parametric.placeholders.fill_placeholders(split.template, member) for member in made]
        assert declared.jobs == len(made)
        assert declared.longest <= declared.characters
        assert declared.longest >= max(len(str(text.get("Arguments", ""))) for text in texts)


def test_a_description_that_its_placeholders_would_blow_up_is_refused_before_it_is_filled(
    expanded: list[int],
) -> None:
    [problem] = refused({"Executable": "a", "Arguments": "%s" * 2000, "Parameters": ["x" * 1000]})
    assert "characters of one description with its placeholders filled are too many" in problem
    [together] = refused(
        {"Executable": "a", "Arguments": "%s" * 100, "Parameters": [f"{'x' * 100}{n}" for n in range(9000)]}
    )
    assert "characters with all placeholders filled are too many" in together
    assert expanded == []


def test_unknown_keywords_cost_a_few_searches_and_a_few_problems(searched: list[str]) -> None:
    problems = refused({"Executable": "a", **{f"Keyword{number}": 1 for number in range(50_000)}})
    assert len(problems) == MOST_PROBLEMS
    assert len(searched) <= MOST_HINTS


def test_the_same_holds_for_all_descriptions_of_a_submission_together(searched: list[str]) -> None:
    problems = refused(*({"Executable": "a", f"Keyword{number}": 1} for number in range(1000)))
    assert len(problems) == MOST_PROBLEMS
    assert problems[0].startswith("jobs[0]/Keyword0: unknown keyword")
    assert len(searched) <= MOST_PROBLEMS


def test_nobody_is_helped_with_a_name_of_thousands_of_characters(searched: list[str]) -> None:
    [problem] = refused({"Executable": "a", "K" * 100_000: 1})
    assert "unknown keyword" in problem
    assert searched == []


def test_texts_that_take_seconds_to_parse_are_refused_together_and_taken_one_by_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    words = [", ".join(f'"a{number}_{word}=1"' for word in range(400 + number)) for number in range(20)]
    texts = [f'[Executable = "x"; Environment = {{{each}}}; ]' for each in words]
    assert jdl.count_tokens(texts[0]) == 810
    monkeypatch.setattr(bounds, "DESCRIBED_TOKENS", 5000)

    [problem] = refused(*texts)

    assert problem.startswith("jobs: 5712 words, strings and signs in different texts are too many, allowed")
    assert len(checking.check_sources(grid(), ANN, texts[:6])) == 6
    assert len(checking.check_sources(grid(), ANN, [texts[0]] * 20)) == 20, "equal ones are parsed once"
    monkeypatch.setattr(bounds, "DESCRIBED_TOKENS", 10)
    assert len(checking.check_sources(grid(), ANN, texts[:1])) == 1


#: 80 conditions, 638 words, strings and signs.
_LONG = " || ".join(f"(other.A{number} > {{0}} && other.MaxRAM > {number})" for number in range(40))


@pytest.mark.parametrize(
    "sources",
    [
        [{"Executable": "x", "Requirements": _LONG.format(number)} for number in range(24)],
        [{"Executable": "x", "Requirements": {"expression": _LONG.format(number)}} for number in range(24)],
        [f'[Executable = "x"; Rank = {_LONG.format(number)}; ]' for number in range(24)],
        [{"Executable": "x", "Requirements": _LONG.format("%s"), "Parameters": 24}],
        [{"Executable": "x", "Requirements": _LONG.format("MY.MinRAM"), "MinRAM": "%s", "Parameters": 24}],
    ],
    ids=["JSON", "JSON with a key", "JDL", "placeholders", "own values"],
)
def test_different_expressions_that_take_seconds_are_refused_before_they_are_read(
    sources: list[Source], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(parametric, "expand_description", None)
    [problem] = refused(*sources)
    assert "words, strings and signs in different Requirements and Rank are too many" in problem
    monkeypatch.undo()
    few = [{**each, "Parameters": 3} if "Parameters" in each else each for each in sources[:3]]
    assert checking.check_sources(grid(), ANN, few)


@pytest.mark.parametrize(
    "sources",
    [
        [{"Executable": "x", "Requirements": "%s", "Parameters": [_LONG.format(n) for n in range(24)]}],
        [
            {"Executable": "x", "Requirements": _LONG.format("%s"), "Parameters": [2 * n, 2 * n + 1]}
            for n in range(12)
        ],
        [
            {"Executable": "x", "Requirements": _LONG.format("MY.MinRAM"), "MinRAM": 100 + n}
            for n in range(24)
        ],
    ],
    ids=["whole values", "several descriptions", "own values of several descriptions"],
)
def test_values_in_expressions_are_counted_in_each_description(
    sources: list[Source], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(parametric, "expand_description", None)
    [problem] = refused(*sources)
    assert "words, strings and signs in different Requirements and Rank are too many" in problem
    monkeypatch.undo()
    equal = [source for source in sources[:1] for _ in range(2)]
    split = parametric.split_description(sources[0])  # type: ignore[arg-type]
    monkeypatch.setattr(bounds, "EXPRESSION_TOKENS", split.volume.expression_tokens)
    assert checking.check_sources(grid(), ANN, equal), "equal descriptions are read once"


@pytest.mark.parametrize("blank", [" ", "\n", "\t"])
def test_own_values_are_those_of_each_job_whatever_stands_before_them(blank: str) -> None:
    requirements = {"expression": f"other.A > 1 &&{blank}MY.JobName == other.N"}
    job = {"Executable": "a", "JobName": "%s", "Parameters": ["x", "y"], "Requirements": requirements}
    [checked] = checking.check_sources(grid(), ANN, [job])
    texts = [str(member.whole.requirements) for member in checked.submitted.members]
    assert ['"x"' in texts[0], '"y"' in texts[1]] == [True, True]


def test_equal_expressions_and_one_long_one_are_read_once(monkeypatch: pytest.MonkeyPatch) -> None:
    equal = [{"Executable": f"x{number}", "Requirements": _LONG.format(1)} for number in range(30)]
    assert len(checking.check_sources(grid(), ANN, equal)) == 30
    own = [{"Executable": "x", "Arguments": "%s", "Requirements": _LONG.format(1), "Parameters": 1000}]
    assert checking.check_sources(grid(), ANN, own)
    monkeypatch.setattr(bounds, "EXPRESSION_TOKENS", 10)
    assert checking.check_sources(grid(), ANN, equal[:1])


def test_texts_that_several_expressions_build_are_counted_together() -> None:
    built = 'size({}strcat("{}", other.Architecture){}) > 0'
    sources: list[Source] = [
        {"Executable": "x", "Requirements": built.format("toLower(" * 110, str(number) * 17_000, ")" * 110)}
        for number in range(10)
    ]
    [problem] = refused(*sources)
    assert problem.startswith("jobs: the texts that the different Requirements and Rank read and build are")
    assert checking.check_sources(grid(), ANN, sources[:1]), "its own bound makes it an error, if at all"
    short = [
        {"Executable": "x", "Requirements": built.format("toLower(", number, ")")} for number in range(200)
    ]
    assert checking.check_sources(grid(), ANN, short)


@pytest.mark.parametrize(
    "stated",
    [
        {"Tags": [f"t%s_{number}" for number in range(60)]},
        {"Arguments": "%s" * 60},
        {"InputData": [f"/a/{number}" for number in range(60)], "MinRAM": "%s"},
        {"InputData": [f"/a/{number}" for number in range(60)], "CPUTime": "%s", "Rank": "MY.CPUTime"},
    ],
    ids=["values", "places", "other values", "own values"],
)
def test_values_that_are_read_for_each_of_thousands_of_jobs_are_bounded(
    stated: dict[str, object], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bounds, "FILLED_VALUES", 1000)
    [problem] = refused({"Executable": "x", "Parameters": 30, "ParameterStart": 600, **stated})
    assert "values to be read with placeholders filled are too many" in problem
    assert checking.check_sources(
        grid(), ANN, [{"Executable": "x", "Parameters": 3, "ParameterStart": 600, **stated}]
    )
    equal = [{"Executable": "x", "Parameters": 5, "ParameterStart": 600, **stated}] * 4
    assert checking.check_sources(grid(), ANN, equal), "equal descriptions are read once"
    shared = {"Executable": "x", "Arguments": "%s", "InputData": [f"/a/{number}" for number in range(60)]}
    assert checking.check_sources(grid(), ANN, [{**shared, "Parameters": 300}]), "read once for all"


@pytest.mark.parametrize(
    ("text", "tokens"),
    [('a = "b\\" c"; # "', 6), ('"' * 5, 3), ('"\\', 1), ("\u2028 \n", 0), ("'a' && b", 6)],
)
def test_the_tokens_of_a_text_are_counted_without_parsing_it(text: str, tokens: int) -> None:
    assert jdl.count_tokens(text) == tokens


def test_problems_stand_in_the_order_of_the_descriptions() -> None:
    problems = refused({"Executable": "a", "CPUTime": 1}, "[ Executable = ", {"Executable": "a", "GPUs": -1})
    assert [each.partition("]")[0] for each in problems] == ["jobs[0", "jobs[1", "jobs[2"]


def test_who_may_not_submit_is_told_so_with_the_index() -> None:
    with pytest.raises(NotAllowed, match=r"^jobs\[1\]/you may not submit for others"):
        checking.check_sources(grid(), ANN, [{"Executable": "a"}, {"Executable": "a", "Owner": "eve"}])
    named = {"Executable": "a", "VO": "lhcb", "Owner": "eve"}
    assert checking.check_sources(grid(), OPERATOR, [named])


def test_any_site_is_no_condition_of_a_job_that_would_be_held_either() -> None:
    config = validate.parse("Resources: {Sites: {A: {}, B: {}}}")
    source = {"Executable": "a", "Site": ["ANY", "A"], "InputData": ["/vo/file"]}
    found = checking.dry_run_source(config, ANN, source, now=datetime.now(UTC))
    assert "no replica catalogue" in str(found.trouble)
    assert found.requirement_class.sites == frozenset()
