"""Handlers of job types: arithmetic, words for the user, and one of somebody else's package."""

import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cs_config.options.options import SHIPPED_JOB_TYPES, VoOptions
from optimizers.description import description
from optimizers.description.jdl import read_descriptions
from pilotage.fabric.manager import job_types
from pilotage.fabric.manager.job_types import (
    EventRange,
    Generic,
    HandledJob,
    Handler,
    MonteCarlo,
    SiteLimits,
    UnfitJob,
    event_range,
)

EXAMPLE = Path(__file__).parents[5] / "examples" / "concatenation"
MONTECARLO, GENERIC = MonteCarlo(), Generic()


def job(number: int = 0, **stated: object) -> HandledJob:
    return HandledJob(job_id=5, description={"Executable": "run", **stated}, number=number)


def number(site: SiteLimits | None = None, **stated: object) -> int:
    return MONTECARLO.number_of_jobs(job(**stated), site or SiteLimits())


@pytest.mark.parametrize(
    ("stated", "site", "expected"),
    [
        ({"Events": 2000}, SiteLimits(), 8),  # 250 where nothing is known
        ({"Events": 2001}, SiteLimits(), 9),
        ({"Events": 1}, SiteLimits(), 1),
        ({"Events": 2000, "EventsPerJob": 300}, SiteLimits(), 7),
        (
            {"Events": 2000, "EventsPerJob": 5000},
            SiteLimits(),
            1,
        ),  # the user's own figure is not capped at 250
        ({"Events": 2000, "CPUPerEvent": 60}, SiteLimits(max_cpu_per_job=36_000), 4),  # 600 each
        ({"Events": 2000, "CPUPerEvent": 60, "EventsPerJob": 100}, SiteLimits(max_cpu_per_job=36_000), 20),
        ({"Events": 2000, "CPUPerEvent": 60, "EventsPerJob": 1000}, SiteLimits(max_cpu_per_job=36_000), 4),
        ({"Events": 2000}, SiteLimits(max_cpu_per_job=36_000, cpu_per_event=90), 5),  # the site's figure
        ({"Events": 2000, "CPUPerEvent": 60}, SiteLimits(max_cpu_per_job=36_000, cpu_per_event=90), 4),
        ({"Events": 2000, "CPUPerEvent": 60}, SiteLimits(), 8),  # no limit of the site: nothing follows
        ({"Events": 2000}, SiteLimits(max_cpu_per_job=36_000), 8),
        ({"Events": 30, "CPUPerEvent": 0.1}, SiteLimits(max_cpu_per_job=0.3), 10),  # 0.3 / 0.1 is 3
        ({"Events": 100, "CPUPerEvent": 0.7}, SiteLimits(max_cpu_per_job=1000), 1),
    ],
)
def test_the_number_of_local_jobs_follows_from_events_and_cpu_time(
    stated: dict[str, Any], site: SiteLimits, expected: int
) -> None:
    assert number(site, **stated) == expected


def test_events_are_spread_evenly_and_each_has_its_number_and_seed() -> None:
    parts = [event_range(job(3, Events=10, FirstEvent=101, Seed=7), n) for n in (1, 2, 3)]
    assert parts == [
        EventRange(events=4, first_event=101, seed=7, first_file=1),
        EventRange(events=3, first_event=105, seed=8, first_file=2),
        EventRange(events=3, first_event=108, seed=9, first_file=3),
    ]


def test_local_jobs_with_several_output_files_in_each_phase_share_none() -> None:
    stated = {"Events": 1050, "EventsPerFile": 100, "EventsPerJob": 350}
    assert number(SiteLimits(), **stated) == 4, "11 files, 3 in a local job"
    parts = [event_range(job(4, Seed=1, **stated), n) for n in range(1, 5)]
    assert [(each.files, each.first_file) for each in parts] == [(3, 1), (3, 4), (3, 7), (2, 10)]
    assert [(each.events, each.first_event) for each in parts] == [
        (300, 1),
        (300, 301),
        (300, 601),
        (150, 901),
    ]
    command = MONTECARLO.command(job(4, Arguments="{files} from {first_file}", **stated), 4)
    assert command.words == ("run", "2", "from", "10")
    assert (command.environment["FILES"], command.details["First file"]) == ("2", 10)
    assert number(SiteLimits(), Events=1000, EventsPerFile=500) == 2, (
        "a file is larger than the rule of thumb"
    )
    with pytest.raises(UnfitJob, match="EventsPerFile: 100 are too many, a local job has at most 60 events"):
        number(SiteLimits(max_cpu_per_job=600), CPUPerEvent=10, **stated)


@given(st.integers(1, 10**12), st.integers(1, 200), st.integers(0, 2**31 - 1))
def test_every_event_is_in_one_local_job_whatever_their_numbers(events: int, local: int, seed: int) -> None:
    local = min(local, events)
    parts = [event_range(job(local, Events=events, Seed=seed, FirstEvent=0), n) for n in range(1, local + 1)]
    assert sum(each.events for each in parts) == events
    assert [each.first_event for each in parts] == [sum(p.events for p in parts[:n]) for n in range(local)]
    assert max(each.events for each in parts) - min(each.events for each in parts) <= 1
    assert len({each.seed for each in parts}) == local
    assert all(0 <= each.seed < 2**31 for each in parts)


def test_two_grid_jobs_without_a_seed_have_other_seeds() -> None:
    one, other = (HandledJob(job_id=each, description={"Events": 10}, number=5) for each in (5, 6))
    assert {event_range(one, n).seed for n in range(1, 6)}.isdisjoint(
        event_range(other, n).seed for n in range(1, 6)
    )


@pytest.mark.parametrize(
    ("stated", "said"),
    [
        ({}, "Events: is missing"),
        ({"Events": 0}, "Events: 0 is not allowed, only 1 to"),
        ({"Events": -3}, "Events: -3 is not allowed"),
        ({"Events": 10**13}, "Events: 10000000000000 is not allowed"),
        ({"Events": 2.5}, "Events: 2.5 is not a whole number"),
        ({"Events": float("nan")}, "Events: nan is not a whole number"),
        ({"Events": float("inf")}, "Events: inf is no"),
        ({"Events": True}, "Events: True is not a whole number"),
        ({"Events": "many"}, "Events: 'many' is not a whole number"),
        ({"Events": 5, "EventsPerJob": 0}, "EventsPerJob: 0 is not allowed"),
        ({"Events": 5, "CPUPerEvent": 0}, "CPUPerEvent: 0 is not a number of seconds above 0"),
        ({"Events": 5, "CPUPerEvent": -1.5}, "CPUPerEvent: -1.5 is not a number of seconds above 0"),
        ({"Events": 5, "CPUPerEvent": float("nan")}, "CPUPerEvent: nan is not a number of seconds"),
        ({"Events": 5, "Seed": 2**31}, "Seed: 2147483648 is not allowed, only 0 to 2147483647"),
        ({"Events": 5, "FirstEvent": -1}, "FirstEvent: -1 is not allowed, only 0 to"),
        ({"Events": 5, "Arguments": "'open"}, 'Arguments: "\'open": No closing quotation'),
        ({"Events": 5, "Executable": " "}, "Executable: is missing"),
    ],
)
def test_what_nobody_can_mean_is_refused_with_the_keyword_and_what_is_allowed(
    stated: dict[str, Any], said: str
) -> None:
    with pytest.raises(UnfitJob) as error:
        MONTECARLO.check(job(**stated))
    assert said in str(error.value)


def test_too_many_local_jobs_and_too_long_events_are_refused_by_the_site() -> None:
    with pytest.raises(
        UnfitJob, match=r"Events: 1000 with at most 1 per local job are 1000 local jobs, this site"
    ):
        number(SiteLimits(max_local_jobs=999), Events=1000, EventsPerJob=1)
    with pytest.raises(
        UnfitJob, match=r"CPUPerEvent: one event takes 700 s, a local job at this site has 600 s"
    ):
        number(SiteLimits(max_cpu_per_job=600), Events=1, CPUPerEvent=700)
    with pytest.raises(UnfitJob, match="LocalJobs: 51 are too many, this site takes 50"):
        GENERIC.number_of_jobs(job(LocalJobs=51), SiteLimits(max_local_jobs=50))


def test_a_local_job_is_told_its_part_in_arguments_environment_and_a_file() -> None:
    wanted = job(2, Events=5, Seed=1, Arguments="--n {events} '--from={first_event} {unknown}' {seed}")
    command = MONTECARLO.command(wanted, 2)
    assert command.words == ("run", "--n", "2", "--from=4 {unknown}", "2")
    assert command.environment["EVENTS"] == "2"
    assert command.size == 2
    assert MONTECARLO.prepare_work_area(wanted, 2) == {
        "montecarlo.json": b'{"events": 2, "first_event": 4, "seed": 2, "files": 1, "first_file": 2}'
    }


def test_a_generic_job_is_one_local_job_unless_it_says_how_many() -> None:
    assert GENERIC.number_of_jobs(job(), SiteLimits()) == 1
    assert GENERIC.number_of_jobs(job(LocalJobs=12), SiteLimits()) == 12
    assert GENERIC.command(job(12, Arguments=["{local_job}/{local_jobs}"]), 3).words == ("run", "3/12")


@pytest.fixture
def installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, Handler]:
    """The handlers where the example is installed, as an installer would have done it."""
    told = tomllib.loads((EXAMPLE / "pyproject.toml").read_text())["project"]
    facts = tmp_path / f"{told['name'].replace('-', '_')}-{told['version']}.dist-info"
    facts.mkdir()
    (facts / "METADATA").write_text(
        f"Metadata-Version: 2.1\nName: {told['name']}\nVersion: {told['version']}\n"
    )
    points = told["entry-points"][job_types.GROUP]
    lines = [f"[{job_types.GROUP}]", *(f"{name} = {value}" for name, value in points.items())]
    (facts / "entry_points.txt").write_text("\n".join(lines))
    for directory in (tmp_path, EXAMPLE):
        monkeypatch.syspath_prepend(directory)
    found = job_types.installed_handlers()
    sys.modules.pop("concatenation", None)
    return found


def test_a_handler_of_somebody_elses_package_is_found_by_its_entry_point(
    installed: dict[str, Handler],
) -> None:
    assert {"generic", "montecarlo", "concatenation"} <= installed.keys()
    handler = installed["concatenation"]
    wanted = job(3, InputData=[f"/f{n}" for n in range(5)], FilesPerJob=2)
    handler.check(wanted)
    assert handler.number_of_jobs(wanted, SiteLimits()) == 3
    assert handler.prepare_work_area(wanted, 3) == {"files.txt": b"/f4\n"}
    assert handler.command(wanted, 1).size == 2
    with pytest.raises(UnfitJob, match="there is nothing to concatenate"):
        handler.check(job())


def test_what_is_no_handler_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    facts = tmp_path / "broken-1.dist-info"
    facts.mkdir()
    (facts / "METADATA").write_text("Metadata-Version: 2.1\nName: broken\nVersion: 1\n")
    (facts / "entry_points.txt").write_text(f"[{job_types.GROUP}]\nbroken = collections:OrderedDict\n")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(TypeError, match="broken = 'collections:OrderedDict' is not a handler"):
        job_types.installed_handlers()


def test_the_configuration_knows_the_shipped_handlers_as_types_of_job_managers() -> None:
    project = tomllib.loads((EXAMPLE.parents[1] / "pyproject.toml").read_text())
    assert set(project["project"]["entry-points"][job_types.GROUP]) == set(SHIPPED_JOB_TYPES)


def test_the_places_that_are_refused_elsewhere_are_those_that_handlers_fill() -> None:
    filled = set[str]()
    for name, handler in (("montecarlo", MONTECARLO), ("generic", Generic())):
        arguments = [*description.PLACES_OF_GRID_JOBS, "{other}"]
        stated = {"Executable": "a", "JobType": name, "Events": 10, "Arguments": arguments}
        words = handler.command(HandledJob(job_id=1, description=stated, number=1), 1).words
        filled |= set(arguments) - set(words)
    assert filled == set(description.PLACES_OF_GRID_JOBS)


def test_the_job_of_the_users_page_is_what_a_montecarlo_job_should_be() -> None:
    page = (EXAMPLE.parents[1] / "docs" / "user" / "grid-jobs.md").read_text()
    jdl = page.split("```\n")[1]
    [raw] = read_descriptions(jdl)
    body = description.stored_body(description.parse_description(raw, VoOptions()))
    wanted = HandledJob(job_id=1, description=body)
    MONTECARLO.check(wanted)
    assert MONTECARLO.number_of_jobs(wanted, SiteLimits()) == 8
    command = MONTECARLO.command(HandledJob(job_id=1, description=body, number=8), 2)
    assert command.words[:5] == ("generate.sh", "--events", "250", "--first", "251")
