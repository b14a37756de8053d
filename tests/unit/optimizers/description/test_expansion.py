"""The members of a parametric job are what each of them would be alone, however many are read at once."""

import pytest

from cs_config.options.operations import options_for
from optimizers.description import description, jdl, parametric
from optimizers.description.parametric import JobMember, SplitDescription
from requirements.classad.expression import Expression
from requirements.errors import InvalidJob
from taskqueue.jobs import placeholders
from tests.support.factories.submitted_jobs import ANN, grid

OPTIONS = options_for(grid(), "lhcb")
VALUES = 'Parameters = {"5", "", "7 8"};\nParameters.F = {"a", "b", "c"};\n'


def read(text: str, parameters: str = VALUES) -> tuple[SplitDescription, list[JobMember]]:
    [raw] = jdl.read_descriptions(f'Executable = "run.sh";\n{text}\n{parameters}')
    split = parametric.split_description(raw)
    expanded = parametric.expand_parameters(split, most=100)
    return split, list(parametric.read_members(split, expanded, OPTIONS))


@pytest.mark.parametrize(
    ("text", "is_read_once"),
    [
        ('Arguments = "plain";', True),
        ('Arguments = "%s of %(F)s, 100%"; JobName = "%n"; StdOut = "%n.out"; LogLevel = "%s";', True),
        ('OutputSandbox = {"std.out", "%(F)s.log"}; OutputData = "LFN:/lhcb/%n";', True),
        ('ExecutionEnvironment = {"NUMBER=%n", "NAME=%s"}; JobGroup = "%(F)s";', True),
        ('InputData = {"LFN:/lhcb/%(F)s", "/lhcb/all"};', True),
        ('FirstEvent = "%n"; Seed = "1%n";', True),
        ('Seed = "%n"; Requirements = other.Memory >= MY.Seed;', False),
        ('CPUTime = "10%n"; Arguments = "%s";', False),
        ('InputSandbox = "LFN:/lhcb/%n.tar"; Arguments = "%s";', False),
    ],
)
def test_each_is_what_it_is_alone(text: str, is_read_once: bool) -> None:
    split, members = read(text)
    for member in members:
        alone = description.parse_description(
            placeholders.fill_placeholders(split.template, member.parameters), OPTIONS
        )
        assert member.whole == alone
        assert member.own_body == {name: description.stored_body(alone)[name] for name in member.own_body}
    assert len({id(member.description) for member in members}) == (1 if is_read_once else len(members))


@pytest.mark.parametrize(
    ("text", "parameters"),
    [
        ('Arguments = "--seed %s";', VALUES),
        ('Arguments = "%s";', VALUES),  # an empty one is not stated
        ('Arguments = "%s"; CPUTime = 600;', 'Parameters = {"1", "2"};'),
        ('Arguments = "%s"; CPUTime = "60%n";', VALUES),
        ('OutputSandbox = "%(F)s";', VALUES.replace('"b"', '" "')),  # a blank one is left out
    ],
)
def test_a_body_that_is_shared_says_of_each_what_it_says_alone(text: str, parameters: str) -> None:
    split, members = read(text, parameters)
    try:
        body = description.stored_body(description.parse_description(split.template, OPTIONS))
    except InvalidJob:
        body = {}
    bodies = [description.stored_body(each.whole) for each in members]
    filled = [placeholders.fill_placeholders(body, each.parameters) for each in members]
    assert parametric.find_shared_body(split, members, OPTIONS) == (body if filled == bodies else None)


def test_the_first_that_is_wrong_is_named() -> None:
    with pytest.raises(InvalidJob) as refused:
        read('Arguments = "%s"; Seed = "%(F)s";', 'Parameters = 3;\nParameters.F = {"1", "-2", "-3"};')
    [problem] = refused.value.problems
    assert problem.path == "Seed"
    assert "-2 is too small" in problem.message
    assert "(in the job with F=-2, n=1, s=1)" in problem.message


def test_jobs_share_a_stored_description_only_with_one_sandbox_and_one_rank() -> None:
    one, two = ("a" * 64, "b" * 64)
    raw = {
        "Executable": "run.sh",
        "InputSandbox": "SB:sha256:%(S)s",
        "Rank": 'other.OS == "%(R)s" ? 1 : 0',
        "Parameters.S": [one, one, two, one],
        "Parameters.R": ["el8", "el8", "el8", "el9"],
    }
    found = parametric.expand_description(parametric.split_description(raw), ANN, grid(), None)
    ranks = [Expression(text=f'other.OS == "{system}" ? 1 : 0') for system in ("el8", "el9")]
    assert [(each.sandbox, [member.whole.rank for member in each.members]) for each in found] == [
        (one, [ranks[0]] * 2),
        (two, [ranks[0]]),
        (one, [ranks[1]]),
    ]
    numbers = [dict(member.parameters or {})["n"] for each in found for member in each.members]
    assert numbers == ["0", "1", "2", "3"]


@pytest.mark.parametrize(
    "text",
    [
        (
            'Executable = "a"; Requirements = other.OS == "%(F)s"; Rank = other.OS == "%s" ? 1 : 0;\n'
            'Parameters = {"el8", "el9"}; Parameters.F = {"b", "c"};'
        ),
        (
            'Executable = a\nRequirements = other.OS == "%(F)s"\nRank = other.OS == "%s" ? 1 : 0\n'
            "Parameters = el8, el9\nParameters.F = b, c\n"
        ),
        (
            'Executable: a\nRequirements: other.OS == "%(F)s"\nRank: "other.OS == \\"%s\\" ? 1 : 0"\n'
            "Parameters: [el8, el9]\nParameters.F: [b, c]\n"
        ),
    ],
    ids=["JDL", "CFG", "YAML"],
)
def test_placeholders_of_expressions_are_filled_in_every_language(text: str) -> None:
    [raw] = jdl.read_descriptions(text)
    members = [
        each
        for some in parametric.expand_description(parametric.split_description(raw), ANN, grid(), None)
        for each in some.members
    ]
    assert [(each.whole.requirements, each.whole.rank) for each in members] == [
        (Expression(text=f'other.OS == "{f}"'), Expression(text=f'other.OS == "{s}" ? 1 : 0'))
        for f, s in (("b", "el8"), ("c", "el9"))
    ]


def test_a_placeholder_of_an_expression_needs_no_quotes_where_the_language_has_none() -> None:
    [raw] = jdl.read_descriptions("Executable = a\nRequirements = other.Memory >= %s\nParameters = 5, 6\n")
    found = parametric.expand_description(parametric.split_description(raw), ANN, grid(), None)
    asked = [each.whole.requirements for some in found for each in some.members]
    assert asked == [Expression(text=f"other.Memory >= {number}") for number in (5, 6)]
