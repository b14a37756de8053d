"""What is kept of conditions of jobs at all queues."""

import pytest

from cs_config.tree.configuration import Configuration
from matcher.explain import queue_set, unmet_conditions
from matcher.explain.job_conditions import JobDemand
from requirements.classad.expression import Expression
from requirements.requirement_class import RequirementClass

VO = "osgvo"
_MOST = 200_000


def test_conditions_of_many_long_lists_are_kept_up_to_their_bytes(
    osg: Configuration, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in (queue_set, unmet_conditions):
        monkeypatch.setattr(module, "MOST_BYTES", _MOST)
    here = queue_set.some_queues(osg, VO, osg.addresses)
    caches = here._resolved, here._addresses, here.failed._cache
    for number in range(30):
        sites = frozenset(f"LCG.Nowhere-{number}-{each}.org" for each in range(200))
        text = f"other.MaxRAM > {number} && " + " && ".join(f"other.A{each} =!= 1" for each in range(400))
        asked = RequirementClass(vo=VO, cpu_time=number, sites=sites)
        demand = JobDemand(asked=asked, requirements=Expression(text=text))
        assert not here.eligible(demand)
        here.failures(demand)
        here.addresses(number + 1)
        assert all(cache._bytes <= _MOST for cache in caches)
    assert all(cache._bytes > _MOST // 4 for cache in (here._resolved, here.failed._cache))
