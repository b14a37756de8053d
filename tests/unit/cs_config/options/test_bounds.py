"""No amount of the configuration is without an end: those who compute with it rely on that."""

from collections.abc import Iterator

import pytest
from annotated_types import Le, MaxLen
from pydantic import BaseModel
from pydantic.fields import FieldInfo

from cs_config import validate
from cs_config.options import bounds
from cs_config.options.options import DeclaredName, ShareCorrection, TimeSlice, VoOptions
from cs_config.options.registry import Registry
from cs_config.tree.parameters import KNOWN, find_fault
from cs_config.tree.throttle import Throttle
from pilotage.fabric.pilot import offer
from requirements.values import fold

#: Options whose values are bounded where they are read, not by their field.
_READ_ELSEWHERE = {"min", "max", "default"}


def errors(text: str) -> list[str]:
    return [str(problem) for problem in validate.report(text, "c.yaml").errors]


def _unbounded(model: type[BaseModel]) -> Iterator[str]:
    for name, option in model.model_fields.items():
        shown = str(option.annotation)
        if isinstance(option.annotation, type) and issubclass(option.annotation, BaseModel):
            yield from _unbounded(option.annotation)
        elif name in _READ_ELSEWHERE and model is DeclaredName:
            continue
        elif "Mapping" in shown or "tuple" in shown:
            if not _has(option, MaxLen) and "MaxLen" not in shown and "max_length" not in shown:
                yield f"{model.__name__}.{name}"
        elif ("int" in shown or "float" in shown) and not _has(option, Le) and "Le(" not in shown:
            yield f"{model.__name__}.{name}"


def _has(option: FieldInfo, kind: type) -> bool:
    return any(isinstance(each, kind) for each in option.metadata)


@pytest.mark.parametrize("model", [VoOptions, DeclaredName, ShareCorrection, TimeSlice, Throttle])
def test_every_number_and_every_list_of_the_options_has_a_bound(model: type[BaseModel]) -> None:
    assert list(_unbounded(model)) == []


def test_shares_of_groups_have_a_bound() -> None:
    assert Registry.model_fields  # the section that is read below
    [found] = errors("Registry: {Groups: {prod: {JobShare: 1.0e+308}}}")
    assert "Registry/Groups/prod/JobShare: 1e+308 is not allowed here" in found
    assert str(bounds.SHARE) in found


@pytest.mark.parametrize(
    "stated",
    [
        "Leases: {StalledTime: 1.0e+15}",
        "Leases: {Time: 1.0e-9}",
        "Leases: {StalledTime: 0.5, StalledGrace: 0, RunOnTime: 1}",
        "Leases: {StalledTime: 1, StalledGrace: 0, RunOnTime: 1.0e-3}",
        "Pools: {RefreshInterval: 1.0e-9}",
        "JobScheduling: {HoldTime: 0}",
        "Leases: {Time: 1000000000000}",
        "Leases: {StalledGrace: 1000000000000}",
        "Leases: {RunOnTime: 1000000000000}",
        "Pools: {RefreshInterval: 100000000000}",
        "Pools: {GraceTime: 100000000000}",
        "Retention: {Jobs: 1000000}",
        "Retention: {Outputs: 1000000}",
        "JobScheduling: {HoldTime: 1.0e+12}",
        "JobScheduling: {RescheduleDelays: [1, 1.0e+12]}",
        "JobScheduling: {RunningLimit: {A: {JobType: {MC: 1000000000000}}}}",
        "JobScheduling: {MatchingDelay: {A: {JobType: {MC: 1.0e+300}}}}",
        "JobScheduling: {MatchingDelay: {A: {JobType: {MC: 1}, Burst: {JobType: {MC: 1000000000}}}}}",
        "JobDescription: {MaxParametricJobs: 1000000000000}",
        "Limits: {RequestsPerSecond: 1.0e-300}",
    ],
)
def test_an_amount_beyond_what_its_consumers_can_bear_is_refused_with_what_is_allowed(stated: str) -> None:
    [found] = errors(f"Operations:\n  lhcb:\n    {stated}\n")
    assert found.startswith("Operations/lhcb/")
    assert "allowed" in found
    assert found.endswith("(c.yaml:3)")


def test_a_throttle_whose_advertisements_last_for_ever_is_refused() -> None:
    [found] = errors("Resources: {Sites: {A: {Throttle: {Policy: level0, Lifetime: 1.0e+15}}}}")
    assert f"allowed is at most {bounds.SECONDS}" in found


@pytest.mark.parametrize("known", KNOWN, ids=lambda known: known.name)
def test_no_known_parameter_may_be_any_number(known: object) -> None:
    folded = fold(known.name)  # type: ignore[attr-defined]
    if folded != "rank":  # compared, never computed with
        assert find_fault(folded, 1e300)


def test_a_queue_may_have_no_more_processors_than_a_pilot_may_offer() -> None:
    where = "Resources/Sites/A/VOs/lhcb/NumberOfProcessors"
    [found] = errors("Resources: {Sites: {A: {VOs: {lhcb: {NumberOfProcessors: 4096}}}}}")
    assert found.startswith(f"{where}: '4096' is not allowed here, allowed is a whole number from 0 to 1024")


def test_pilots_bound_the_power_of_processors_as_the_configuration_does() -> None:
    assert offer.MOST_POWER == bounds.POWER
