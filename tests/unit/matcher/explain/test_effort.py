"""What explaining a long expression comes to: counted, since a worker serves nobody else meanwhile."""

from collections import Counter, defaultdict

import pytest

from cs_config.tree.configuration import Configuration
from matcher.explain import queue_set
from matcher.explain.explanation import explain, suggest_changes
from matcher.explain.job_conditions import JobDemand
from matcher.explain.work_budget import WorkBudget
from requirements import evaluator
from requirements.bitset import list_positions
from requirements.classad import evaluation
from requirements.classad.evaluation import Program
from requirements.classad.expression import Expression
from requirements.requirement_class import RequirementClass

VO = "osgvo"


def conditions(number: int) -> str:
    return " && ".join(
        f"(other.a{each} == 1 || member(other.MaxRAM, {{{3 * each}, {3 * each + 1}, {3 * each + 2}}}))"
        for each in range(number)
    )


def asking(text: str) -> JobDemand:
    return JobDemand(asked=RequirementClass(vo=VO, cpu_time=86_400), requirements=Expression(text=text))


@pytest.fixture
def work(monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """How often queues are asked for their reasons, and characters that are read."""
    done: Counter[str] = Counter()
    values_of, read = Program.values_of, evaluation.read

    def counted_values_of(programs, names, resource):
        done["asked"] += 1
        return values_of(programs, names, resource)

    def counted_read(source):
        done["read"] += len(source.text)
        return read(source)

    monkeypatch.setattr(Program, "values_of", staticmethod(counted_values_of))
    monkeypatch.setattr(evaluation, "read", counted_read)
    evaluation._compile_short.cache_clear()
    evaluation._compile_long.cache_clear()
    return done


def test_a_kind_of_queues_is_asked_once_however_many_conditions_fail(osg: Configuration, work: Counter[str]):
    here = queue_set.some_queues(osg, VO, osg.addresses)
    found = explain(here, VO, asking(conditions(60)))
    assert len(found.exclusions) >= 60
    assert work["asked"] <= len(here.distinct("MaxRAM", here.everything)) + 1


@pytest.mark.parametrize(
    "text",
    [
        " && ".join(f"other.MaxRAM > {1_000 * each}" for each in range(130)),
        " && ".join(f"other.MaxRAM > {1_000 * each} || other.CPUTime > {each}" for each in range(60)),
        "other.MaxRAM && other.MaxRAM > 99999999 && other.Site == 5",
        "other.MaxRAM > 8000 && other.Nowhere == 1 && other.maxram > 8000 && other.MaxRAM > 8000",
        'regexp("^LCG", other.GlueCEUniqueID) && other.regexp_0 == 1',
        "other.MaxRAM",
        "1 == 2 && other.MaxRAM > 1",
        "other.MaxRAM >",
    ],
)
def test_operands_asked_by_themselves_fail_where_each_queue_says_so(osg: Configuration, text: str):
    """Queues are asked in groups, by what matters to each operand; here one by one, for all of it."""
    here = queue_set.some_queues(osg, VO, osg.addresses)
    alone: defaultdict[str, dict[int, str | None]] = defaultdict(dict)
    for number, queue in enumerate(here.queues):
        for why in evaluator.failing(Expression(text=text), queue.values, here.declarations, queue.nodes):
            alone[why.wanted][number] = why.has
    grouped = {
        failure.wanted: {
            number: has for has, mask in here.failed.list_values(failure) for number in list_positions(mask)
        }
        for failure in here.failures(asking(text))
        if failure.requirement == "Requirements"
    }
    assert grouped == alone
    failing = {each.wanted: set(list_positions(each.queues)) for each in here.failures(asking(text))}
    assert {wanted: failing[wanted] for wanted in alone} == {key: set(has) for key, has in alone.items()}


def test_names_that_no_queue_has_tell_none_from_another(osg: Configuration, work: Counter[str]):
    here = queue_set.some_queues(osg, VO, osg.addresses)
    explain(here, VO, asking(" || ".join(f"other.a{each} == 1" for each in range(200))))
    assert work["asked"] == 1


@pytest.mark.parametrize(
    "text",
    [
        " || ".join(f"other.MaxRAN{each} == 1" for each in range(200)),
        " || ".join(f"(other.MaxRAM > {99_000_000 + each} && other.a{each} == 3)" for each in range(190)),
    ],
    ids=["misspelt", "numbers"],
)
def test_the_work_for_changes_is_bounded_and_what_is_left_out_is_known(
    osg: Configuration, work: Counter[str], text: str
):
    effort = WorkBudget()
    told = suggest_changes(queue_set.some_queues(osg, VO, osg.addresses), VO, asking(text), effort)
    assert (effort.over, work["read"] < 100_000) == (True, True), work
    assert [each.text[:9] for each in told] == ["leave out"]


def test_of_a_short_expression_nothing_is_left_out(osg: Configuration):
    effort = WorkBudget()
    text = 'other.MaxRAM > 9999999 && other.Platfrom == "x"'
    assert suggest_changes(queue_set.some_queues(osg, VO, osg.addresses), VO, asking(text), effort)
    assert not effort.over
