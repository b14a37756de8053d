import subprocess
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from pathlib import Path

import pytest

from tests import debian, tiers
from tests.support.left_out import needs_every_plugin

ALL = [group.name for group in tiers.GROUPS]


@pytest.fixture
def commit(tmp_path: Path) -> Callable[..., str]:
    """Commits files, each with its path as its text, in a repository of its own; answers the commit."""

    def git(*words: str) -> str:
        who = ("-c", "user.name=a", "-c", "user.email=a@example.org")
        return subprocess.check_output(["git", *who, *words], cwd=tmp_path, text=True).strip()

    def commit(*files: str) -> str:
        for name in files:
            file = tmp_path / name
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(f"{file.read_text() if file.exists() else ''}{name}\n")
        git("add", "--all")
        git("commit", "--quiet", "--allow-empty", "--message=change")
        return git("rev-parse", "HEAD")

    git("init", "--quiet", "--initial-branch=main")
    (tmp_path / "tests" / "nightly").mkdir(parents=True)
    return commit


def write_runs(root: Path, names: Sequence[str], commit: str, day: str = "2026-01-02") -> None:
    with (root / "tests/nightly/runs.txt").open("a") as runs:
        runs.writelines(f"{name} {commit} {day}\n" for name in names)


def test_all_groups_are_called_where_the_history_does_not_tell_what_changed(
    tmp_path: Path, commit: Callable[..., str]
) -> None:
    write_runs(tmp_path, ALL, commit("docs/README.md"))
    assert sorted(tiers.list_called(tmp_path)) == sorted(ALL)


def test_groups_are_called_by_changes_of_their_sources(tmp_path: Path, commit: Callable[..., str]) -> None:
    first = commit("README.md")
    write_runs(tmp_path, ALL, first)
    for _ in range(tiers.RECENT):
        commit()
    assert tiers.list_called(tmp_path) == []
    commit("pilotage/plugins/dirac/app.py")
    assert tiers.list_called(tmp_path) == ["dirac"]
    commit("tests/acceptance/test_image.py")
    assert tiers.list_called(tmp_path) == ["dirac", "image"]
    commit("pyproject.toml")
    assert sorted(tiers.list_called(tmp_path)) == sorted(ALL)


def test_changes_count_from_the_last_tag(tmp_path: Path, commit: Callable[..., str]) -> None:
    write_runs(tmp_path, ALL, commit("deploy/Dockerfile"))
    subprocess.check_call(["git", "tag", "v1"], cwd=tmp_path)
    commit("agents/sweep.py")
    assert tiers.list_called(tmp_path) == ["model", "campaign", "earlier release", "second database"]


def test_what_ran_longest_ago_comes_first_and_what_never_ran_before_that(
    tmp_path: Path, commit: Callable[..., str]
) -> None:
    first = commit("README.md")
    write_runs(tmp_path, ["model"], first, "2026-01-03")
    write_runs(tmp_path, ["campaign"], first, "2026-01-02")
    write_runs(tmp_path, ["image"], "0123456789ab", "2026-01-01")  # of another history
    called = tiers.list_called(tmp_path)
    assert called[-3:] == ["image", "campaign", "model"]
    assert len(called) == len(ALL)


def test_a_group_is_overdue_after_so_many_commits(
    tmp_path: Path, commit: Callable[..., str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tiers, "LONGEST", 5)
    write_runs(tmp_path, [name for name in ALL if name != "image"], "0123456789ab")  # called in any case
    write_runs(tmp_path, ["image"], commit("README.md"))
    for _ in range(tiers.LONGEST):
        commit()
    assert tiers.list_overdue(tmp_path) == []
    commit()
    assert tiers.list_overdue(tmp_path) == ["image"]


def test_a_group_that_never_ran_is_overdue_if_any_host_can_run_it(
    tmp_path: Path, commit: Callable[..., str], monkeypatch: pytest.MonkeyPatch
) -> None:
    never, rare = (
        tiers.Group(name=name, sources=(), runs_anywhere=anywhere)
        for name, anywhere in (("never", True), ("rare", False))
    )
    monkeypatch.setattr(tiers, "GROUPS", (*tiers.GROUPS, never, rare))
    write_runs(tmp_path, ALL, commit("README.md"))
    assert tiers.list_overdue(tmp_path) == ["never"]


def test_a_run_replaces_the_one_before(tmp_path: Path, commit: Callable[..., str]) -> None:
    write_runs(tmp_path, ["image", "model", "a group that is gone"], "0123456789ab")
    now = commit()
    began = datetime.now(tz=UTC).date()
    tiers.note_runs(["model"], tmp_path)
    runs = tiers.read_runs(tmp_path)
    assert runs.keys() == {"image", "model"}
    assert runs["model"].commit == now[:12]
    assert began <= runs["model"].day <= datetime.now(tz=UTC).date()
    assert runs["image"].commit == "0123456789ab"


def test_a_test_of_both_databases_runs_on_postgresql_at_night_but_for_claims_limits_leases_and_schema() -> (
    None
):
    pages = "tests/integration/pilotage/service/pages/test_jobs.py::test_one"
    groups = [tiers.group_of(pages, (), database) for database in ("postgres", "sqlite", "")]
    assert [group and group.name for group in groups] == ["second database", None, None]
    for folder in tiers.ON_BOTH_DATABASES:
        assert tiers.group_of(f"{folder}test_one.py", (), "postgresql") is None


@needs_every_plugin
def test_groups_name_what_exists() -> None:
    for beginning in tiers.ON_BOTH_DATABASES:
        assert (tiers.ROOT / beginning).exists(), beginning
    for group in tiers.GROUPS:
        assert set(group.suites) <= debian.SUITES.keys()
        for beginning in (*group.files, *group.sources):
            assert list(tiers.ROOT.glob(f"{beginning}*")), beginning
