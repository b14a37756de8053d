"""What a preview says of pools is what their mapping will be: the two ways to the evaluator agree."""

import json
from collections import Counter
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cs_config import validate
from cs_config.classes.queue_class_index import eligible_classes
from cs_config.editing import patch, proposals
from cs_config.editing.permissions import Rights
from cs_config.editing.proposals import Proposal
from cs_config.tree.address import QueueAddress
from cs_config.tree.configuration import Configuration
from matcher.explain import work_budget
from matcher.explain.work_budget import WorkBudget
from matcher.preview import shifts
from matcher.preview.shifts import ChangedQueues, ComparedAds, VersionComparison
from requirements import canonical, evaluator
from requirements.classad.expression import Expression
from requirements.requirement_class import RequirementClass
from taskqueue.task_queues.listing import WaitingClass

BEFORE = validate.parse(
    """
Resources:
  Sites:
    A.org:
      Memory: 10
      VO: [cms, dune]
      CEs:
        c1: {Queues: {q1: {}, q2: {Memory: 20, VOs: {dune: {Memory: 30}}}}}
        c2: {Enabled: false, Queues: {q: {}}}
    B.org: {OS: el9, CEs: {c: {Memory: 40, Queues: {q: {NodeAttributes: {OS: [el8, el9]}}}}}}
Operations:
  Defaults: {JobDescription: {Cores: {type: number, resource: Memory}}}
""",
    "before.yaml",
    1,
)
PATHS = [
    "Resources/Sites/A.org",
    "Resources/Sites/A.org/CEs/c1",
    "Resources/Sites/A.org/CEs/c1/Queues/q2",
    "Resources/Sites/A.org/CEs/c2",
    "Resources/Sites/B.org/CEs/c/Queues/q",
    "Resources/Sites/A.org/CEs/c1/Queues/new",
]
SETTINGS = st.sampled_from(
    [
        ("Memory", 15),
        ("Memory", None),
        ("Enabled", False),
        ("Enabled", True),
        ("VO", ["dune"]),
        ("OS", "el8"),
        ("VOs", {"cms": {"Memory": 50}}),
        ("VOs", {}),
        ("NodeAttributes", {"Memory": [1, 60]}),
        ("Tag", ["x"]),
    ]
)
CHANGES = st.dictionaries(
    st.tuples(st.sampled_from(PATHS), SETTINGS.map(lambda each: json.dumps(each))), st.none(), max_size=4
)
ASKED = st.sampled_from(
    [{"Memory": 15}, {"Memory": 35, "OS": "el8"}, {"OS": "el9"}, {"Cores": 45}, {"Tag": ["x"]}]
)
OPERATIONS = st.sampled_from(
    [{}, {"Operations/Defaults/JobDescription/Memory": {"type": "number", "resource": "Nothing"}}]
)


def proposal(changes: dict[tuple[str, str], None], options: dict[str, Any]) -> Proposal | None:
    values = dict(options)
    for path, setting in changes:
        name, value = json.loads(setting)
        values[f"{path}/{name}"] = value
    if not values:
        return None
    return proposals.propose_edits(BEFORE, BEFORE, patch.read_edits(values), Rights(everything=True))


def eligible(config: Configuration, vo: str, asked: dict[str, Any]) -> set[QueueAddress]:
    found = eligible_classes(config, vo, canonical.from_json(json.dumps({"record": asked})))
    return {queue for each in found for queue in each.queues}


@given(CHANGES, OPERATIONS, ASKED, st.sampled_from(["cms", "dune"]))
def test_pools_gain_and_lose_what_their_mapping_will(changes, options, asked, vo):
    found = proposal(changes, options)
    if found is None:
        return
    touched = ChangedQueues(found).from_differences(vo)
    old, new = eligible(found.before, vo, asked), eligible(found.after, vo, asked)
    assert (old ^ new) <= touched
    here = VersionComparison(found.before, found.after, vo, touched, WorkBudget())
    [*told] = shifts.pool_shifts(here, vo, {"pool": json.dumps({"record": asked})}, [])
    if old == new:
        assert told == []
    else:
        [pool] = told
        assert (pool.shift.gained, pool.shift.lost) == (new - old, old - new)
        assert (pool.shift.had, pool.shift.has) == (bool(old), bool(new))


MANY = 1_000


@pytest.fixture(scope="module")
def freed() -> VersionComparison:
    """A change of one queue of a thousand, all of different values, that frees jobs; with its budget."""
    queues = {f"q{n}": {"Memory": n, "Local": f"x{n}"} for n in range(MANY)}
    tree = {"Resources": {"Sites": {"A.org": {"VO": ["cms"], "CEs": {"c": {"Queues": queues}}}}}}
    before = validate.parse(json.dumps(tree), "before.yaml", 1)
    edits = patch.read_edits({"Resources/Sites/A.org/CEs/c/Queues/q0/Odd": 1})
    change = proposals.propose_edits(before, before, edits, Rights(everything=True))
    touched = ChangedQueues(change).from_differences("cms")
    assert len(touched) == 1
    return VersionComparison(change.before, change.after, "cms", touched, WorkBudget(left=60_000))


def asking(number: int, length: int = 200) -> str:
    text = f'other.Odd == 1 || (other.Memory == -{number + 1} && other.Local == "y")'.ljust(length)
    return canonical.to_json(Expression(text=text))


def test_jobs_that_only_a_changed_queue_fits_are_evaluated_elsewhere_as_far_as_the_budget_allows(
    freed: VersionComparison, monkeypatch: pytest.MonkeyPatch
):
    """Each is evaluated at all other queues, whose values differ: that is most of the work."""
    done: Counter[str] = Counter()
    fits = evaluator.eligible
    monkeypatch.setattr(evaluator, "eligible", lambda *about: done.update(evaluated=1) or fits(*about))
    pools = {f"pool{n:03}": asking(n) for n in range(200)}
    found = list(shifts.pool_shifts(freed, "cms", pools, []))
    complete = [each for each in found if each.shift.is_complete]
    assert len(found) == 200
    assert 0 < len(complete) <= 60_000 // (200 * MANY // 32)
    assert done["evaluated"] <= (len(complete) + 1) * MANY + 2 * 200
    assert all(each.shift.has and not each.shift.had for each in complete)


def test_a_vo_leaves_what_it_does_not_spend_to_the_others():
    left = []
    for spent, budget in zip((0, 1_000, 10), work_budget.share(3, 300), strict=True):
        left.append(budget.left)
        budget.spend(spent)
    assert left == [100, 150, 150]


def test_a_job_type_that_job_managers_get_shifts_its_jobs():
    before = validate.parse(
        "Resources: {Sites: {A: {JobType: [other], CEs: {c: {Queues: {q: {}}}}}}}\n"
        "Operations: {cms: {JobDescription: {Extra: [Note]}}}\n"
    )
    edits = patch.read_edits({"Operations/cms/JobTypes": {"merge": {"manager": True}}})
    found = proposals.propose_edits(before, before, edits, Rights(everything=True))
    touched = ChangedQueues(found).from_differences("cms")
    here = VersionComparison(found.before, found.after, "cms", touched, WorkBudget(left=1_000))
    asked = RequirementClass(vo="cms", cpu_time=0, job_types=frozenset({"merge"}))
    waiting = WaitingClass(asked=asked, requirements=None, jobs=3, first_job=1)
    [shift] = shifts.class_shifts(here, [waiting], ComparedAds(before={}, after={}))
    assert shift.stuck == 3
