"""What explaining a long expression comes to: counted, since a worker serves nobody else meanwhile."""

from collections import Counter

import pytest

from cs_config.configuration import Configuration
from matcher import survey
from matcher.changes import changes
from matcher.effort import Effort
from matcher.explain import explain
from matcher.parts import Demand
from requirements import evaluation, evaluator
from requirements.expression import Expression
from taskqueue.classes import RequirementClass

VO = "osgvo"


def conditions(number: int) -> str:
    return " && ".join(
        f"(other.a{each} == 1 || member(other.MaxRAM, {{{3 * each}, {3 * each + 1}, {3 * each + 2}}}))"
        for each in range(number)
    )


def asking(text: str) -> Demand:
    return Demand(asked=RequirementClass(vo=VO, cpu_time=86_400), requirements=Expression(text=text))


@pytest.fixture
def work(monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """How often queues are asked for their reasons, and characters that are read."""
    done: Counter[str] = Counter()
    failing, read = evaluator.failing, evaluation.read

    def counted_failing(*args):
        done["asked"] += 1
        return failing(*args)

    def counted_read(source):
        done["read"] += len(source.text)
        return read(source)

    monkeypatch.setattr(evaluator, "failing", counted_failing)
    monkeypatch.setattr(evaluation, "read", counted_read)
    evaluation._known.cache_clear()
    return done


def test_a_kind_of_queues_is_asked_once_however_many_conditions_fail(osg: Configuration, work: Counter[str]):
    here = survey.of_queues(osg, VO, osg.addresses)
    found = explain(here, VO, asking(conditions(60)))
    assert len(found.exclusions) >= 60
    assert work["asked"] <= len(here.distinct("MaxRAM", here.everything)) + 1


def test_names_that_no_queue_has_tell_none_from_another(osg: Configuration, work: Counter[str]):
    here = survey.of_queues(osg, VO, osg.addresses)
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
    effort = Effort()
    told = changes(survey.of_queues(osg, VO, osg.addresses), VO, asking(text), effort)
    assert (effort.over, work["read"] < 100_000) == (True, True), work
    assert [each.text[:9] for each in told] == ["leave out"]


def test_of_a_short_expression_nothing_is_left_out(osg: Configuration):
    effort = Effort()
    text = 'other.MaxRAM > 9999999 && other.Platfrom == "x"'
    assert changes(survey.of_queues(osg, VO, osg.addresses), VO, asking(text), effort)
    assert not effort.over
