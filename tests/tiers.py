"""The tiers of tests: which suites are left to the nightly tier, and which of them a change calls for.

`./dev test` runs what is in no group, `./dev test --all` everything, `./dev test --called` the groups whose
sources changed since the last tag (without one, in the last 30 commits), the oldest run first, for an hour. A
run of `--all` notes each group that passed in `RUNS`. `python -m tests.tiers` lists what is
called, and refuses if a group has not run for 100 commits, or never though any host can run it.
"""

import subprocess
import sys
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, date, datetime
from pathlib import Path
from typing import Final

ROOT = Path(__file__).parent.parent
#: A line for each group: its name, and commit and date of its last whole run that passed.
RUNS = ROOT / "tests" / "nightly" / "runs.txt"
#: Commits that count as a change where no release is tagged.
RECENT: Final = 30
#: Commits after which each group has to have run again.
LONGEST: Final = 100
#: Seconds in which called groups may begin tests.
TIME: Final = 3600.0

_CORE = ("requirements/", "cs_config/", "taskqueue/", "optimizers/", "matcher/", "agents/")
#: Where each change tests PostgreSQL beside SQLite: what many processes do at once, and the schema.
ON_BOTH_DATABASES: Final = (
    "tests/integration/matcher/claim/",
    "tests/integration/matcher/limits/",
    "tests/integration/pilotage/service/routes/test_matcher.py",
    "tests/integration/taskqueue/db/",
    "tests/integration/taskqueue/leases/",
    "tests/integration/taskqueue/test_migrations.py",
    "tests/integration/taskqueue/test_rolling_upgrade.py",
)
_SITE_SIDE = ("pilotage/fabric/", "pilotage/cli/processes/")
#: A change of these calls for everything.
_EVERYTHING = ("pyproject.toml", "dev", ".ci/", "tests/conftest.py", "tests/tiers.py", "tests/debian.py")


@dataclass(frozen=True, kw_only=True)
class Group:
    """Suites of the nightly tier that run together."""

    name: str
    files: tuple[str, ...] = ()  #: beginnings of the paths of its test files
    suites: tuple[str, ...] = ()  #: of `tests.debian.SUITES`: each test that needs one of them, too
    second_database: bool = False  #: tests of both databases on PostgreSQL, but for `ON_BOTH_DATABASES`
    sources: tuple[str, ...]  #: beginnings of paths whose change calls for it
    runs_anywhere: bool = True  #: whether every host has what it needs

    def has(self, file: str, suites: Collection[str], database: str = "") -> bool:
        """Whether a test belongs to this group; `database`: the one of the two that it runs on."""
        is_second = database.startswith("postgres") and not file.startswith(ON_BOTH_DATABASES)
        of_group = file.startswith(self.files) or not set(self.suites).isdisjoint(suites)
        return of_group or (self.second_database and is_second)

    def is_called_by(self, file: str) -> bool:
        """Whether a change of this file calls for the group."""
        return file.startswith((*_EVERYTHING, *self.files, *self.sources))


#: A test belongs to the first group that has it.
GROUPS = (
    Group(
        name="batch systems",
        suites=("arc", "gridengine", "htcondor", "torque"),
        sources=(
            "pilotage/fabric/batch/",
            "pilotage/fabric/director/",
            "pilotage/plugins/arc/",
            "pilotage/plugins/batch_check/",
            "examples/servers/",
        ),
    ),
    Group(
        name="directors on Slurm",
        files=("tests/acceptance/test_director_on_slurm.py",),
        sources=(*_SITE_SIDE, "requirements/nodes/", "examples/servers/slurm.py"),
    ),
    Group(
        name="dirac",
        files=("tests/acceptance/test_dirac", "tests/acceptance/test_demo_on_dirac.py"),
        suites=("dirac",),
        sources=(
            *("pilotage/plugins/dirac/", "pilotage/fabric/pilot/", "matcher/", "optimizers/description/"),
            *("cs_config/formats/", "pilotage/plugins/formats/", "examples/servers/"),
        ),
    ),
    Group(name="model", files=("tests/nightly/model/",), sources=(*_CORE, "pilotage/service/")),
    Group(
        name="campaign",
        files=("tests/acceptance/test_campaign.py", "tests/acceptance/campaign/"),
        sources=(*_CORE, *_SITE_SIDE, "pilotage/service/"),
    ),
    Group(
        name="attacks",
        files=("tests/acceptance/test_benchmark_of_attacks.py", "tests/acceptance/test_benchmark_of_wlcg.py"),
        sources=("benchmarks/", "pilotage/service/"),
    ),
    Group(
        name="foresight",
        files=("tests/acceptance/test_benchmark_of_foresight.py",),
        sources=("benchmarks/", "pilotage/replay/", "matcher/forecast/", "agents/forecasts.py"),
    ),
    Group(
        name="fuzzing",
        files=("tests/acceptance/test_fuzzing.py", "tests/acceptance/fuzzing/"),
        sources=("requirements/", "cs_config/", "optimizers/description/", "pilotage/service/"),
    ),
    Group(
        name="earlier release",
        files=("tests/acceptance/test_earlier_release", "tests/data/earlier_release/"),
        sources=(*_CORE, "pilotage/service/", "pilotage/fabric/pilot/"),
    ),
    Group(
        name="balancers",
        files=("tests/acceptance/test_behind_balancers.py", "tests/acceptance/test_rolling_restart.py"),
        sources=("deploy/", "pilotage/service/", "pilotage/client/", "pilotage/cli/processes/serve.py"),
    ),
    Group(
        name="backups",
        files=("tests/acceptance/test_restore_to_a_time.py",),
        sources=("deploy/pgbackrest/", "taskqueue/db/", "taskqueue/blob_stores/", "taskqueue/blobs.py"),
    ),
    Group(
        name="cluster",
        files=("tests/acceptance/test_cluster.py", "tests/acceptance/test_upgrade_during_failover.py"),
        sources=(
            "deploy/",
            "examples/cluster/",
            "examples/servers/",
            "taskqueue/db/",
            "pilotage/cli/engine.py",
        ),
    ),
    Group(
        name="demos",
        files=("tests/acceptance/test_demo_on_grid.py", "tests/acceptance/test_demo_on_slurm.py"),
        sources=("examples/", "pilotage/cli/", *_SITE_SIDE),
    ),
    Group(
        name="tutorials",
        files=("tests/acceptance/test_tutorials.py", "tests/acceptance/test_installation.py"),
        suites=("machines",),
        sources=("README.md", "docs/", "deploy/", "examples/", "pilotage/cli/"),
    ),
    Group(
        name="workflow systems",
        files=("tests/acceptance/test_workflow_systems.py",),
        sources=("packages/", "pilotage/client/"),
    ),
    Group(
        name="image",
        files=("tests/acceptance/test_image.py",),
        sources=("deploy/",),
        runs_anywhere=False,
    ),
    Group(
        name="release",
        files=("tests/acceptance/test_release.py",),
        sources=("deploy/", "packages/"),
    ),
    Group(
        name="second database",
        second_database=True,
        sources=(*_CORE, "pilotage/service/", "pilotage/cli/", "tests/integration/"),
    ),
)


@dataclass(frozen=True, slots=True)
class Run:
    """The last whole run of a group that passed."""

    commit: str
    day: date


def group_of(file: str, suites: Collection[str], database: str = "") -> Group | None:
    """The group of a test by its file, Debian suites and database; None: `./dev test` runs it."""
    return next((group for group in GROUPS if group.has(file, suites, database)), None)


def list_called(root: Path = ROOT) -> list[str]:
    """The groups that the changes call for, and those of which no run is known; the oldest run first."""
    runs = read_runs(root)
    changed = _list_changed(root)
    called = [
        group.name
        for group in GROUPS
        if changed is None
        or not _is_known(root, runs.get(group.name))
        or any(map(group.is_called_by, changed))
    ]
    return sorted(called, key=lambda name: runs[name].day if name in runs else date.min)


def list_overdue(root: Path = ROOT) -> list[str]:
    """The groups whose last run is further back than `LONGEST` commits of a history that has it.

    Also those that never ran, if any host can run them: the others are called wherever they can run.
    """
    runs = read_runs(root)
    late = [name for name, run in runs.items() if (_commits_since(root, run) or 0) > LONGEST]
    return late + [group.name for group in GROUPS if group.name not in runs and group.runs_anywhere]


def read_runs(root: Path = ROOT) -> Mapping[str, Run]:
    """The last run of each group of today that has one."""
    runs = {}
    file = root / RUNS.relative_to(ROOT)
    for line in file.read_text().splitlines() if file.exists() else ():
        name, commit, day = line.rsplit(maxsplit=2)
        runs[name] = Run(commit, date.fromisoformat(day))
    return {group.name: runs[group.name] for group in GROUPS if group.name in runs}


def note_runs(passed: Iterable[str], root: Path = ROOT) -> None:
    """Note that these groups passed with the present commit, today."""
    runs = {**read_runs(root)}
    present = Run(_git(root, "rev-parse", "--short=12", "HEAD") or "unknown", datetime.now(tz=UTC).date())
    runs |= dict.fromkeys(passed, present)
    lines = [f"{name} {run.commit} {run.day}\n" for name, run in sorted(runs.items())]
    (root / RUNS.relative_to(ROOT)).write_text("".join(lines))


def _list_changed(root: Path) -> list[str] | None:
    """The files changed since the last tag, or in the recent commits; None: this history does not tell."""
    tag = _git(root, "describe", "--tags", "--abbrev=0")
    changed = _git(root, "diff", "--name-only", tag or f"HEAD~{RECENT}", "--")
    return None if changed is None else changed.splitlines()


def _is_known(root: Path, run: Run | None) -> bool:
    return run is not None and _commits_since(root, run) is not None


def _commits_since(root: Path, run: Run) -> int | None:
    """How many commits are newer than the run; None: this history does not have its commit."""
    count = _git(root, "rev-list", "--count", f"{run.commit}..HEAD")
    return None if count is None else int(count)


def _git(root: Path, *words: str) -> str | None:
    """What git answers; None: it refuses."""
    done = subprocess.run(["git", *words], cwd=root, capture_output=True, text=True, check=False)
    return done.stdout.strip() if done.returncode == 0 else None


def main() -> None:
    print("called:", ", ".join(list_called()) or "nothing")  # noqa: T201
    if overdue := list_overdue():
        sys.exit(
            f"not run in the last {LONGEST} commits, or never: {', '.join(overdue)}; "
            "run ./dev test --all and commit tests/nightly/runs.txt"
        )


if __name__ == "__main__":
    main()
