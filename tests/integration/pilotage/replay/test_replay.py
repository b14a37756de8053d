"""Replays of a day that a plant in simulated time left, recorded as any other."""

import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from itertools import accumulate
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import Engine, delete, func, select, update

from benchmarks import lhcb, plant
from benchmarks.plant import BEGIN, Plant
from cs_config import validate
from cs_config.tree.configuration import Configuration
from examples.servers.starting import wait_until
from pilotage.replay import comparison, recorded_day, replay_database
from pilotage.replay.comparison import ComparedFigure, Figure
from pilotage.replay.recorded_day import NotReplayable, RecordedDay
from pilotage.replay.simulation import ReplayedDay, Simulation
from taskqueue import day_record
from taskqueue.day_record import Seen, Series
from taskqueue.db import database
from taskqueue.schema.tables import (
    attempts,
    day_records,
    job_log,
    jobs,
    metadata,
    pool_mappings,
    requirement_classes,
    submit_pools,
    task_queues,
    waiting_jobs,
)
from tests.support.commands import Run, run

__all__ = ["run"]

LATER = datetime(2026, 5, 1, tzinfo=UTC)
SMALL = Plant(hours=1.0, jobs=60, classes=6, slots=6, queues=3, slot_hours=0.6, seconds=400, every=60)
END = BEGIN + timedelta(hours=1)
MINUTE = timedelta(minutes=1)


@pytest.fixture(scope="module")
def recorded(sqlite_template: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("plant") / "plant.db"
    shutil.copy(sqlite_template, path)
    engine = database.connect(f"sqlite:///{path}")
    plant.record(engine, SMALL)
    engine.dispose()
    return path


@pytest.fixture
def installation(recorded: Path, tmp_path: Path) -> Iterator[Engine]:
    path = tmp_path / "copy.db"
    shutil.copy(recorded, path)
    engine = database.connect(f"sqlite:///{path}")
    yield engine
    engine.dispose()


def read(engine: Engine, begin: datetime = BEGIN, end: datetime = END) -> RecordedDay:
    return recorded_day.read_day(engine, begin=begin, end=end, now=LATER)


def replay(
    day: RecordedDay, *, change: Callable[[Configuration], Configuration] = lambda each: each, seed: int = 0
) -> ReplayedDay:
    with replay_database.open_database() as engine:
        return Simulation(engine, day, change=change, seed=seed).run()


def dump(engine: Engine) -> dict[str, list[tuple[object, ...]]]:
    with database.reading(engine) as conn:
        return {
            name: sorted((tuple(row) for row in conn.execute(select(table))), key=repr)
            for name, table in metadata.tables.items()
        }


def edited(edit: Callable[[dict[str, Any]], None]) -> Callable[[Configuration], Configuration]:
    """A change of the configuration, whose text is JSON."""

    def change(config: Configuration) -> Configuration:
        tree = json.loads(config.source)
        edit(tree)
        return validate.parse(json.dumps(tree), "changed.yaml")

    return change


def _close(site: str) -> Callable[[Configuration], Configuration]:
    def close(tree: dict[str, Any]) -> None:
        tree["Resources"]["Sites"][site]["Enabled"] = False

    return edited(close)


def find(figures: list[ComparedFigure], figure: Figure, by: str) -> ComparedFigure:
    return next(each for each in figures if (each.by, each.figure) == (by, figure))


def test_a_day_is_read_as_it_was_and_nothing_is_changed(engine: Engine) -> None:
    plant.record(engine, Plant(hours=0.5, jobs=20, classes=4, slots=3, queues=3, seconds=200, every=60))
    before = dump(engine)
    day = read(engine, end=BEGIN + timedelta(minutes=30))
    assert len(day.stays) == 20
    assert {each.kind.vo for each in day.stays} == {"lhcb"}
    assert {each.kind.pool for each in day.stays} - {None} == set(day.pools)
    assert {each.digest for each in day.classes.values()} == {each.kind.digest for each in day.stays}
    assert len(day.slots) == 3
    assert all(each.shape is not None and each.processors for each in day.slots)
    assert any(each.site for each in day.stays)
    assert 0 < day.busy <= day.offered
    assert not day.left_out
    replay(day)
    assert dump(engine) == before


def test_the_replay_of_a_day_is_near_to_it(installation: Engine) -> None:
    day = read(installation)
    replayed = replay(day)
    figures = comparison.compare(day, replayed)
    starts, idle = (find(figures, each, "all") for each in (Figure.STARTS, Figure.IDLE))
    assert starts.recorded >= 40
    assert starts.error <= 0.1 * starts.recorded
    assert idle.error <= 0.15 * idle.recorded
    assert all(each.changed is None and each.effect is None for each in figures)


def test_a_replay_with_the_same_seed_is_the_same_in_each_process(recorded: Path, tmp_path: Path) -> None:
    """Sets of texts have another order in each."""
    program = (Path(sys.executable).with_name("pilotage"), *_command(recorded), "--json")
    environment = os.environ | {"PILOTAGE_HOME": str(tmp_path)}
    said = {
        subprocess.run(
            program, env=environment | {"PYTHONHASHSEED": each}, check=True, stdout=subprocess.PIPE
        ).stdout
        for each in ("1", "2", "3")
    }
    assert len(said) == 1


def test_a_change_has_an_effect_beyond_the_error(installation: Engine) -> None:
    day = read(installation)
    closed, *_ = sorted({each.site for each in day.slots})
    changed = replay(day, change=_close(closed))
    assert not [each for each in changed.starts if each is not None and each.site == closed]
    figures = comparison.compare(day, replay(day), changed)
    of_site = next(each for each in figures if (each.by, each.name) == ("site", closed))
    assert of_site.effect == -of_site.replayed < 0


def test_a_limit_holds_in_the_replay(installation: Engine) -> None:
    day = read(installation)
    [site, *_] = sorted({each.site for each in day.slots})

    def limit(tree: dict[str, Any]) -> None:
        scheduling = tree["Operations"]["Defaults"]["JobScheduling"]
        scheduling["RunningLimit"] = {site: {"Owner": {owner: 1 for owner, _ in lhcb.OWNERS}}}

    as_it_was, changed = replay(day), replay(day, change=edited(limit))
    assert _count_most(day, as_it_was, site) > 1
    assert _count_most(day, changed, site) == 1


def _count_most(day: RecordedDay, replayed: ReplayedDay, site: str) -> int:
    """The most jobs of one owner that ran at a site at once."""
    changes: dict[str, list[tuple[datetime, int]]] = {}
    for stay, start in zip(day.stays, replayed.starts, strict=True):
        if start is not None and start.site == site and stay.seconds is not None:
            end = start.at + timedelta(seconds=stay.seconds)
            changes.setdefault(stay.kind.owner, []).extend([(start.at, 1), (end, -1)])
    return max(max(accumulate(number for _, number in sorted(each))) for each in changes.values())


def test_slots_keep_the_jobs_that_they_have_when_the_day_begins(installation: Engine) -> None:
    day = read(installation, begin=BEGIN + timedelta(minutes=42))
    assert day.held
    assert min(each.since for each in day.held) < day.begin
    replayed = replay(day)
    assert 0 < replayed.busy <= day.offered
    held = sum(
        each.processors * recorded_day.overlap(day.begin, each.until or day.end, day.begin, day.end)
        for each in day.held
    )
    assert replayed.busy >= 0.99 * held


def test_jobs_run_since_they_were_matched(installation: Engine) -> None:
    day = read(installation)
    with replay_database.open_database() as engine:
        replayed = Simulation(engine, day).run()
        with database.reading(engine) as conn:
            columns = jobs.c.status, jobs.c.started_at, attempts.c.opened_at, attempts.c.started_at
            rows = conn.execute(select(*columns).join(attempts, attempts.c.job_id == jobs.c.job_id)).all()
    starts = sorted(each.at for each in replayed.starts if each is not None)
    assert sorted(row.opened_at for row in rows) == starts
    # Those of the end are not stored any more: nothing reads them.
    stored = [tuple(row) for row in rows if row.opened_at < day.end - timedelta(seconds=30)]
    assert len(stored) > 30
    assert {status for status, *_ in stored} == {"Running", "Done"}
    assert all(began == opened == running for _, began, opened, running in stored)


def test_what_retention_has_removed_is_derived_from_the_descriptions(installation: Engine) -> None:
    before = read(installation)
    with database.writing(installation) as conn:
        for table in (waiting_jobs, task_queues, requirement_classes, pool_mappings, submit_pools):
            conn.execute(delete(table))
    after = read(installation)
    assert after.classes.keys() == before.classes.keys()
    assert after.pools == before.pools
    assert [each.kind for each in after.stays] == [each.kind for each in before.stays]


def test_jobs_without_a_log_are_left_out(installation: Engine) -> None:
    with database.writing(installation) as conn:
        conn.execute(delete(job_log))
    day = read(installation)
    assert not day.stays
    assert day.left_out == {"jobs without a log of when they began to wait": 60}


def test_jobs_whose_log_begins_after_they_waited_are_left_out(installation: Engine) -> None:
    """As after the partition of the day before was dropped."""
    with database.writing(installation) as conn:
        conn.execute(delete(job_log).where(job_log.c.to_status == "Waiting"))
    day = read(installation)
    assert not day.stays
    assert day.left_out == {"jobs without a log of when they began to wait": 60}


def test_times_before_and_after_a_clock_was_set_back_are_left_out(installation: Engine) -> None:
    before = read(installation)
    [*_, some] = [each for each in before.stays if each.site and each.until is not None]
    assert some.until is not None
    matched = update(job_log).where(job_log.c.job_id == some.job_id, job_log.c.to_status == "Matched")
    with database.writing(installation) as conn:
        conn.execute(matched.values(at=some.since - timedelta(seconds=0.1)))
    [same] = [each for each in read(installation).stays if each.job_id == some.job_id]
    assert same.until == same.since  # the clocks of two hosts differ
    with database.writing(installation) as conn:
        conn.execute(matched.values(at=some.since - timedelta(minutes=5)))
    day = read(installation)
    assert len(day.stays) == len(before.stays) - 1
    assert day.left_out == {"times of waiting that end before they begin: a clock was set back": 1}


def test_minutes_without_a_record_are_left_out(installation: Engine) -> None:
    end = END + timedelta(minutes=30)
    day = read(installation, end=end)
    [(what, number)] = day.left_out.items()
    assert what.startswith("minutes in which nothing was recorded")
    assert number == 30
    with database.writing(installation) as conn:
        conn.execute(delete(day_records))
    assert list(read(installation).left_out.values()) == [60]


def test_starts_of_jobs_that_were_removed_are_left_out(installation: Engine) -> None:
    begin = BEGIN + timedelta(seconds=30)  # only whole minutes are compared
    with database.writing(installation) as conn:
        opened = attempts.c.opened_at
        within = opened >= BEGIN + MINUTE, opened < END
        number = conn.execute(select(func.count()).select_from(attempts).where(*within)).scalar_one()
        subject = ("1",)
        seen = [Seen(series=Series.STARTS, subject=subject, at=BEGIN + MINUTE, value=number)]
        day_record.add_counts(conn, seen)
    assert not read(installation, begin=begin).left_out
    with database.writing(installation) as conn:
        day_record.add_counts(conn, [replace(each, value=7) for each in seen])
    assert read(installation, begin=begin).left_out == {"starts of jobs that retention has removed": 7}


def test_jobs_that_were_withdrawn_leave_the_replay(installation: Engine) -> None:
    """All jobs are killed as they come, so none is started."""
    day = read(installation)
    for each in day.stays:
        each.until, each.site = each.since, ""
    replayed = replay(day)
    assert replayed.starts == [None] * len(day.stays)
    figures = comparison.compare(day, replayed)
    assert find(figures, Figure.P90, "VO").replayed == 0


def test_a_closed_site_is_closed_in_the_replay(installation: Engine) -> None:
    [site, *_] = sorted({each.site for each in read(installation).slots})
    with database.writing(installation) as conn:
        minutes = [
            Seen(series=Series.CLOSED, subject=(site.lower(),), at=BEGIN + timedelta(minutes=each), value=1)
            for each in range(10, 40)
        ]
        day_record.store_values(conn, minutes)
    day = read(installation)
    [closed] = day.closed
    assert (closed.begins, closed.ends) == (BEGIN + timedelta(minutes=10), BEGIN + timedelta(minutes=40))
    starts = [each for each in replay(day).starts if each is not None and each.site == site]
    assert starts
    assert not [each for each in starts if closed.begins < each.at < closed.ends]


def test_a_day_that_cannot_be_replayed_is_refused(
    installation: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(NotReplayable, match="up to 7 days"):
        read(installation, end=BEGIN + timedelta(days=8))
    with pytest.raises(NotReplayable, match="not over yet"):
        recorded_day.read_day(installation, begin=BEGIN, end=END, now=BEGIN)
    with pytest.raises(NotReplayable, match="no configuration before"):
        read(installation, begin=BEGIN - timedelta(days=2), end=BEGIN - timedelta(days=1))
    monkeypatch.setattr(recorded_day, "MOST_JOBS", 3)
    with pytest.raises(NotReplayable, match="at most 3 are replayed"):
        read(installation)


def test_a_replay_that_takes_too_long_is_given_up(installation: Engine) -> None:
    day = read(installation)
    with replay_database.open_database() as engine, pytest.raises(NotReplayable, match="--within"):
        Simulation(engine, day, deadline=time.monotonic() - 1).run()


def _command(recorded: Path) -> tuple[str, ...]:
    """The replay of the first hour of a database's day."""
    begin = f"{BEGIN:%Y-%m-%d}"
    return "replay", "--database-url", f"sqlite:///{recorded}", "--from", begin, "--for", "1h"


_CHANGE = "--set", "Operations/lhcb/JobScheduling/Scarcity=owner"


@pytest.mark.parametrize(
    ("ending", "change"),
    [
        *((each, ()) for each in (signal.SIGTERM, signal.SIGHUP, signal.SIGKILL)),
        *((each, _CHANGE) for each in (signal.SIGTERM, signal.SIGHUP)),
    ],
)
def test_a_replay_that_is_ended_leaves_nothing(
    recorded: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    ending: signal.Signals,
    change: tuple[str, ...],
) -> None:
    words = *_command(recorded), *change
    left = tmp_path / "temporary"
    left.mkdir()
    environment = os.environ | {"TMPDIR": str(left), "PILOTAGE_HOME": str(tmp_path)}
    program = (Path(sys.executable).with_name("pilotage"), *words)
    seen: set[Path] = set()

    def have_begun() -> bool:
        """Whether each process has its directory, with a change there are two; or they ended meanwhile."""
        seen.update(left.glob("*/lock"))
        return len(seen) == (2 if change else 1) or replaying.poll() is not None

    with subprocess.Popen(program, env=environment, stderr=subprocess.DEVNULL) as replaying:
        wait_until(have_begun)
        replaying.send_signal(ending)
    for each in left.iterdir():
        assert ending == signal.SIGKILL
        os.utime(each, (0, 0))
    monkeypatch.setattr(tempfile, "tempdir", str(left))
    with replay_database.open_database(), replay_database.open_database():
        assert len(list(left.iterdir())) == 2  # those of others who are at it stay
    assert not list(left.iterdir())


def test_both_replays_of_the_command_are_those_of_one_alone(
    installation: Engine, recorded: Path, tmp_path: Path, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They run at the same time, each in a process of its own."""
    monkeypatch.setenv("PILOTAGE_HOME", str(tmp_path))
    day = read(installation)
    closed, *_ = sorted({each.site for each in day.slots})
    expected = comparison.compare(day, replay(day), replay(day, change=_close(closed)))
    status, said, _ = run(*_command(recorded), "--set", f"Resources/Sites/{closed}/Enabled=false", "--json")
    assert status == 0
    found = [(each["recorded"], each["replayed"], each["changed"]) for each in json.loads(said)["figures"]]
    assert found == [(each.recorded, each.replayed, each.changed) for each in expected]
    assert any(replayed != changed for _, replayed, changed in found)


def test_the_command_compares_a_day_with_a_changed_one(
    recorded: Path, tmp_path: Path, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PILOTAGE_HOME", str(tmp_path))
    words = _command(recorded)
    status, said, _ = run(*words, *_CHANGE)
    assert status == 0
    heading, *rows = said.splitlines()
    assert heading.split("\t") == [
        "By",
        "Name",
        "Figure",
        "Recorded",
        "Replayed",
        "Error",
        "Changed",
        "Effect",
    ]
    assert any(each.startswith("VO\tlhcb\twaiting p50\t") for each in rows)
    assert any(each.startswith("all\t–\tidle core hours\t") for each in rows)
    status, _, error = run(*words, "--set", "Operations/lhcb/JobScheduling/Scarcity=sometimes")
    assert status == 2
    assert "Scarcity" in error
    status, _, error = run(*words, "--set", "A=1", "--config", "x.yaml")
    assert status == 2
    assert "exclude each other" in error
