"""One request evaluates a bounded part of the waiting classes, whatever and however many they are."""

from collections import Counter

import pytest

from cs_config.tree.configuration import Configuration
from matcher.explain import job_conditions, queue_report, work_budget
from requirements import canonical
from requirements.classad import evaluation
from requirements.classad.expression import Expression
from requirements.requirement_class import RequirementClass
from taskqueue.task_queues.listing import WaitingClass


def waiting(number: int, vo: str = "osgvo", *, jobs: int = 1, length: int = 30) -> WaitingClass:
    text = f"other.MaxRAM > {number}".ljust(length)
    asked = RequirementClass(vo=vo, cpu_time=60)
    requirements = canonical.to_json(Expression(text=text))
    return WaitingClass(asked=asked, requirements=requirements, jobs=jobs, first_job=number)


def size(classes: list[WaitingClass]) -> int:
    return sum(map(work_budget.class_size, classes))


def test_a_report_reads_no_more_than_its_budget(osg: Configuration, monkeypatch: pytest.MonkeyPatch):
    job_conditions.class_conditions.cache_clear()
    evaluation._compile_short.cache_clear()
    evaluation._compile_long.cache_clear()
    done: Counter[str] = Counter()
    read = evaluation._compile
    monkeypatch.setattr(
        evaluation, "_compile", lambda source: done.update(read=len(source.text)) or read(source)
    )
    found = work_budget.choose_classes([waiting(n, length=1_000) for n in range(200)], characters=20_000)
    queue_report.report_queue(osg, osg.addresses[0], found.chosen)
    assert 0 < done["read"] <= 20_000
    assert len(found.chosen) + len(found.left) == 200


def test_the_classes_with_most_jobs_are_chosen_first():
    many = [waiting(n, jobs=n) for n in range(20_000)]
    found = work_budget.choose_classes(many)
    assert size(list(found.chosen)) <= work_budget.QUEUE_REPORT < size(many)
    assert min(each.jobs for each in found.chosen) > max(each.jobs for each in found.left)


def test_of_few_classes_none_is_left():
    assert not work_budget.choose_classes([waiting(n) for n in range(3_000)]).left


def test_a_vo_with_very_many_classes_takes_nothing_from_the_others():
    flood = [waiting(n, "flood", jobs=100, length=500) for n in range(2_000)]
    small = [waiting(n, vo) for vo in ("cms", "dune") for n in range(50)]
    found = work_budget.choose_classes([*flood, *small])
    assert {each.asked.vo for each in found.left} == {"flood"}
    assert size(list(found.chosen)) > work_budget.QUEUE_REPORT * 0.9


def test_several_queues_share_the_budget_of_one():
    many = [waiting(n) for n in range(20_000)]
    one, thirty = (len(work_budget.choose_classes(many, queues=n).chosen) for n in (1, 33))
    assert one == pytest.approx(2 * thirty, rel=0.01)


def test_tags_are_conditions_too():
    asked = RequirementClass(vo="cms", cpu_time=60, tags=frozenset(f"t{n}" for n in range(200)))
    many = [WaitingClass(asked=asked, requirements=None, jobs=1, first_job=n) for n in range(1_000)]
    assert work_budget.choose_classes(many).left
