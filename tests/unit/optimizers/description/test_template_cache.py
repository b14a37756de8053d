"""What comes out of a mould is what reading the whole text gives."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from optimizers.submit import checking
from optimizers.submit.checking import CheckedJobs
from optimizers.submit.submitter import Submitter
from requirements.errors import InvalidJob, NotAllowed
from taskqueue.jobs import placeholders
from tests.support.factories.submitted_jobs import ANN, grid

SHARED = """
Executable = "run.sh";
Site = {"A.B.ch", "C.D.ch"};
CPUTime = 3600;
Requirements = other.Memory >= 2000;
"""


def job(name: str, *own: str, shared: str = SHARED) -> str:
    return f'[\nJobName = "{name}";\n{"".join(own)}{shared}]'


def check(*texts: str, config: str | None = None, submitter: Submitter = ANN) -> list[CheckedJobs]:
    return checking.check_sources(grid(config) if config else grid(), submitter, texts)


def body(checked: CheckedJobs) -> dict[str, object]:
    [member] = checked.submitted.members
    return placeholders.fill_placeholders(
        checked.submitted.body, member.parameters if checked.template else None
    )


def test_texts_that_differ_in_what_each_job_has_for_itself_share_a_mould() -> None:
    first, second = check(job("a", "Seed = 1;\n"), job("b", "Seed = 2;\n"))
    assert first.template is second.template is not None
    assert (body(first)["JobName"], body(second)["JobName"]) == ("a", "b")
    assert (body(first)["Seed"], body(second)["Seed"]) == (1, 2)


def test_texts_that_ask_something_else_do_not() -> None:
    first, second = check(job("a"), job("b", shared=SHARED.replace("3600", "7200")))
    assert first.template is not second.template
    assert (body(first)["CPUTime"], body(second)["CPUTime"]) == (3600, 7200)


def test_each_keeps_the_text_that_it_came_in() -> None:
    texts = [job(name, f'InputData = {{"LFN:/lhcb/{name}", "/lhcb/x"}};\n') for name in "ab"]
    for text, checked in zip(texts, check(*texts), strict=True):
        assert checked.template is not None
        [member] = checked.submitted.members
        assert placeholders.fill_source(checked.template.source, member.parameters) == text


def test_a_text_that_has_nothing_cut_out_keeps_what_looks_like_a_placeholder() -> None:
    text = 'Arguments = "--format %(size=)s %s";'
    assert placeholders.fill_source(text, {"s": "1"}) == text


@pytest.mark.parametrize(
    ("good", "bad"),
    [
        ('Arguments = "1";\n', 'Argumentz = "1";\n'),
        ("Seed = 1;\n", "Seed = -1;\n"),
        ("Seed = 1;\n", "Seed = 99999999999;\n"),
        ('Arguments = "its";\n', 'Arguments = "it\'s";\n'),
        ("", 'JobNames = "twice";\n'),
        ('InputData = {"/absolute"};\n', 'InputData = {"relative"};\n'),
        ("", 'VO = "cms";\n'),
    ],
)
def test_what_is_wrong_is_told_as_if_there_were_no_moulds(good: str, bad: str) -> None:
    alone = _refusal(job("bad", bad))
    assert [each.replace("jobs[1]/", "", 1) for each in _refusal(job("good", good), job("bad", bad))] == alone


def _refusal(*texts: str) -> list[str]:
    with pytest.raises((InvalidJob, NotAllowed)) as refused:
        check(*texts)
    return str(refused.value).splitlines()


def test_an_expression_that_looks_at_its_own_job_is_read_for_each() -> None:
    shared = SHARED + "Rank = other.Memory - MY.Seed;\n"
    first, second = check(job("a", "Seed = 1;\n", shared=shared), job("b", "Seed = 2;\n", shared=shared))
    assert first.template is second.template is None
    ranks = [checked.submitted.members[0].description.rank for checked in (first, second)]
    assert ranks[0] != ranks[1]


@pytest.mark.parametrize(
    "trap",
    [
        '/*\nJobName = "c";\n*/',
        '\nJobName = "real";\n/*\nJobName = "c";\n*/',
        '// \n# x\nJobName /* ; */ = "c";',
        'Extra = [\nJobName = "c"; ];',
        'StdOutput = "\\\nJobName = x;";',
        'Arguments = "%(JobName=)s";',
    ],
)
def test_a_place_that_only_looks_like_one_is_none(trap: str) -> None:
    texts = [f'[ Executable = "{name}.sh"; {trap} \nStdError = "{name}";]' for name in "ab"]
    for text in texts:
        try:
            [alone] = check(text)
        except InvalidJob:
            with pytest.raises(InvalidJob):
                check(*texts)
            return
        [among] = [each for each in check(*texts) if each.source == text]
        assert body(among) == body(alone)


plain = st.text(st.characters(blacklist_categories=("Cs", "Cc"), blacklist_characters='"\\'), min_size=1)
values = st.one_of(
    plain.map(lambda text: f'"{text}"'),
    st.integers(-5, 2**40).map(str),
    st.lists(plain, max_size=3).map(lambda texts: "{" + ", ".join(f'"{text}"' for text in texts) + "}"),
)
entries = st.lists(
    st.tuples(
        st.sampled_from(["JobName", "arguments", "StdOut", "OutputSandbox", "Seed", "InputData"]), values
    ),
    max_size=4,
)


@given(entries, entries)
def test_a_job_among_others_is_what_it_is_alone(first: object, second: object) -> None:
    texts = [_written(entries) for entries in (first, second)]
    alone = [_checked(text) for text in texts]
    if not all(alone):
        with pytest.raises(InvalidJob):
            check(*texts)
        return
    for text, among, single in zip(texts, check(*texts), alone, strict=True):
        assert single is not None
        assert body(among) == body(single)
        if among.template is not None:
            [member] = among.submitted.members
            assert placeholders.fill_source(among.template.source, member.parameters) == text


def _written(entries: object) -> str:
    assert isinstance(entries, list)
    return 'Executable = "run.sh";\n' + "".join(f"{name} = {value};\n" for name, value in entries)


def _checked(text: str) -> CheckedJobs | None:
    try:
        [checked] = check(text)
    except InvalidJob:
        return None
    return checked
