import re
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime
from functools import partial
from pathlib import Path

import pytest
from sqlalchemy import Engine

from cs_config import validate
from cs_config.editing import proposals, show
from cs_config.editing.patch import Edit
from cs_config.editing.permissions import Rights
from cs_config.errors import ConfigError, VersionConflict, VersionNotFound
from cs_config.options import bounds
from cs_config.tree.configuration import Configuration
from cs_config.versions import store as versions_store
from taskqueue.db import database

TEXT = "Resources: {Sites: {S: {MaxRAM: %d, CEs: {C: {Queues: {Q: }}}}}}\n"
WRONG = "Resources: {Sites: {S: {MaxRamm: 1}}}\n"


def store(
    engine: Engine,
    text: str,
    now: datetime,
    expected: int | None = None,
    author: str = "ann",
    source: str = "api",
) -> int:
    with database.writing(engine) as conn:
        return versions_store.store_text(
            conn, text, author=author, message="why", source=source, expected=expected, now=now
        )


def import_file(engine: Engine, path: Path, now: datetime) -> int | None:
    with database.writing(engine) as conn:
        return versions_store.import_changed(conn, path, author="start", now=now)


def current(engine: Engine) -> int:
    with database.reading(engine) as conn:
        return versions_store.current_version(conn)


def together(count: int, action: Callable[[], object]) -> list[object]:
    """What each of `count` threads gets that do the same at the same time: its answer or its error."""
    barrier = threading.Barrier(count)

    def run() -> object:
        barrier.wait()
        try:
            return action()
        except VersionConflict as error:
            return error

    with ThreadPoolExecutor(count) as threads:
        return [each.result() for each in [threads.submit(run) for _ in range(count)]]


def test_before_anything_is_stored_there_is_version_zero(engine: Engine) -> None:
    assert current(engine) == 0
    with database.reading(engine) as conn, pytest.raises(VersionNotFound):
        versions_store.load_version(conn)


def test_versions_are_numbered_without_gaps_and_keep_their_text(engine: Engine, now: datetime) -> None:
    assert [store(engine, TEXT % ram, now) for ram in (1, 2, 3)] == [1, 2, 3]
    with database.reading(engine) as conn:
        assert versions_store.load_version(conn, 2).source == TEXT % 2
        loaded = versions_store.load_version(conn)
        assert (loaded.version, loaded.author, loaded.file) == (3, "ann", "api")
        assert loaded.values(loaded.addresses[0], "cms") == {"MaxRAM": 3}
        assert versions_store.load_version(conn, 1).version == 1
        with pytest.raises(VersionNotFound):
            versions_store.load_version(conn, 4)


def test_history_tells_who_when_and_why_newest_first(engine: Engine, now: datetime) -> None:
    store(engine, TEXT % 1, now, author="ann")
    store(engine, TEXT % 2, now, author="bob")
    with database.reading(engine) as conn:
        newest, oldest = versions_store.list_versions(conn)
        assert (newest.version, newest.author, newest.message, newest.source) == (2, "bob", "why", "api")
        assert newest.created_at == now
        assert oldest.digest == validate.parse(TEXT % 1).digest
        assert versions_store.list_versions(conn, 1) == [newest]


def test_a_version_that_is_wrong_is_not_stored(engine: Engine, now: datetime) -> None:
    store(engine, TEXT % 1, now)
    with pytest.raises(ConfigError, match=r"did you mean MaxRAM\? \(api:1\)"):
        store(engine, WRONG, now)
    assert current(engine) == 1


def test_a_version_made_from_an_old_one_is_refused(engine: Engine, now: datetime) -> None:
    store(engine, TEXT % 1, now, expected=0)
    store(engine, TEXT % 2, now, expected=1)
    with pytest.raises(VersionConflict, match="at version 2, not at 1") as error:
        store(engine, TEXT % 3, now, expected=1)
    assert error.value.details == {"expected": 1, "current": 2}
    assert current(engine) == 2


def test_of_many_at_once_one_wins_and_the_others_are_told(engine: Engine, now: datetime) -> None:
    for version in range(4):
        answers = together(6, partial(store, engine, TEXT % 1, now, version))
        assert [answer for answer in answers if answer == version + 1] == [version + 1]
        assert sum(isinstance(answer, VersionConflict) for answer in answers) == 5
        assert current(engine) == version + 1


def test_the_primary_key_decides_between_transactions_that_do_not_see_each_other(
    postgresql: Engine, now: datetime
) -> None:
    with database.writing(postgresql) as first, ThreadPoolExecutor(1) as other:
        versions_store.store_text(first, TEXT % 1, author="a", message="", source="api", expected=0, now=now)
        second = other.submit(store, postgresql, TEXT % 2, now, 0)
        with pytest.raises(TimeoutError):
            second.result(timeout=0.2)  # it waits for the first one's end
        first.commit()
        with pytest.raises(VersionConflict):
            second.result()
    assert current(postgresql) == 1


def test_a_file_is_imported_when_it_changed(engine: Engine, now: datetime, tmp_path: Path) -> None:
    path = tmp_path / "resources.yaml"
    path.write_text(TEXT % 1)
    assert import_file(engine, path, now) == 1
    assert import_file(engine, path, now) is None
    path.write_text(TEXT % 2)
    assert import_file(engine, path, now) == 2
    with database.reading(engine) as conn:
        assert versions_store.list_versions(conn)[0].source == "resources.yaml"
        assert versions_store.load_version(conn).file == "resources.yaml"


def test_an_unchanged_file_does_not_undo_later_edits(engine: Engine, now: datetime, tmp_path: Path) -> None:
    path = tmp_path / "resources.yaml"
    path.write_text(TEXT % 1)
    import_file(engine, path, now)
    store(engine, TEXT % 5, now, expected=1)
    assert import_file(engine, path, now) is None
    assert current(engine) == 2


def test_a_file_that_was_applied_is_not_imported_again_over_later_edits(
    engine: Engine, now: datetime, tmp_path: Path
) -> None:
    path = tmp_path / "resources.yaml"
    path.write_text(TEXT % 1)
    import_file(engine, path, now)
    path.write_text(TEXT % 2)
    store(engine, TEXT % 2, now, source="resources.yaml")
    store(engine, TEXT % 5, now)
    assert [import_file(engine, path, now) for _ in range(2)] == [None, None]
    assert current(engine) == 3
    path.write_text(TEXT % 1)  # back to what it was at first: that is a change
    assert import_file(engine, path, now) == 4


def test_each_file_is_compared_with_its_own_last_import(
    engine: Engine, now: datetime, tmp_path: Path
) -> None:
    one, two = tmp_path / "one.yaml", tmp_path / "two.yaml"
    one.write_text(TEXT % 1)
    two.write_text(TEXT % 1)
    assert [import_file(engine, path, now) for path in (one, two, one, two)] == [1, 2, None, None]


def test_a_file_that_is_wrong_or_gone_changes_nothing(engine: Engine, now: datetime, tmp_path: Path) -> None:
    path = tmp_path / "resources.yaml"
    path.write_text(TEXT % 1)
    import_file(engine, path, now)
    path.write_text(WRONG)
    with pytest.raises(ConfigError, match=r"resources.yaml:1"):
        import_file(engine, path, now)
    path.unlink()
    with pytest.raises(ConfigError, match="cannot be read"):
        import_file(engine, path, now)
    assert current(engine) == 1


def test_processes_that_start_together_import_a_file_once(
    engine: Engine, now: datetime, tmp_path: Path
) -> None:
    path = tmp_path / "resources.yaml"
    path.write_text(TEXT % 1)
    answers = together(6, lambda: import_file(engine, path, now))
    assert sorted(answers, key=str) == [1, None, None, None, None, None]
    assert current(engine) == 1


def test_the_real_grid_is_stored_and_loaded(engine: Engine, now: datetime) -> None:
    path = Path(__file__).parents[4] / "examples" / "osg" / "resources.yaml"
    assert import_file(engine, path, now) == 1
    with database.reading(engine) as conn:
        assert len(versions_store.load_version(conn).addresses) == 980


def test_an_edit_keeps_the_origins_of_all_other_values(engine: Engine, now: datetime) -> None:
    """The lines of people's file stay named, whatever moves them; an edit is named by its version."""
    text = "Resources:\n  Sites:\n    A.B.c:\n      Tag: [a]\n      CEs: {ce: {Queues: {q: {CPUTime: 9}}}}\n"
    rights = Rights(everything=True)
    store(engine, text, now, source="r.yaml")
    for name, value in (("Country", "CH"), ("MaxRAM", 8000)):
        with database.writing(engine) as conn:
            before = versions_store.load_version(conn)
            edits = [Edit(names=("Resources", "Sites", "A.B.c", name), value=value)]
            after = proposals.propose_edits(before, before, edits, rights).after
            versions_store.store_checked(conn, after, author="", message="", expected=before.version, now=now)
    with database.reading(engine) as conn:
        found = versions_store.load_version(conn)
        first = proposals.propose_rollback(found, versions_store.load_version(conn, 1), rights).after
    expected = ["Country Site, version 2", "CPUTime Queue, r.yaml:5"]
    expected += ["MaxRAM Site, version 3", "Tag Site, r.yaml:4"]
    assert origins_of(found) == expected
    assert origins_of(first) == ["CPUTime Queue, r.yaml:5", "Tag Site, r.yaml:4"]


def origins_of(config: Configuration) -> list[str]:
    return [f"{line.path} {line.origin}" for line in show.list_lines(config, "A.B.c/ce/q", "")]


def test_no_version_of_an_administrator_is_read_again_to_find_what_it_changed(
    engine: Engine, now: datetime, monkeypatch: pytest.MonkeyPatch
) -> None:
    store(engine, TEXT % 1, now)
    changed = [f"Resources/Sites/S/P{number}" for number in range(bounds.EDITED_VALUES)]
    with database.writing(engine) as conn:
        config = versions_store.load_version(conn)
        versions_store.store_checked(
            conn, config, author="ann", message="", expected=1, now=now, changed=changed
        )
    monkeypatch.setattr(versions_store, "load_version", lambda *_: pytest.fail("read again"))
    with database.reading(engine) as conn:
        found = versions_store.find_blame(conn, ["Resources/Sites/S/P7"], newest=2)
    assert found["Resources/Sites/S/P7"].version == 2


LONG = f'Resources: {{Sites: {{S: {{Motto: "{"x" * 4097}", CEs: {{C: {{Queues: {{Q: }}}}}}}}}}}}\n'
MOTTO = "Resources/Sites/S/Motto: has 4097 characters, allowed are 4096"


def test_a_longer_text_of_an_earlier_release_stays_but_none_is_added(
    engine: Engine, now: datetime, tmp_path: Path
) -> None:
    (tmp_path / "grid.yaml").write_text(LONG)
    with pytest.raises(ConfigError, match=MOTTO):
        store(engine, LONG, now)
    with pytest.raises(ConfigError, match=MOTTO):
        import_file(engine, tmp_path / "grid.yaml", now)
    with database.writing(engine) as conn:
        as_before = validate.parse(LONG, kept=None)
        versions_store.store_checked(conn, as_before, author="1.0.0", message="", expected=0, now=now)
        found = versions_store.load_version(conn)
    assert [str(each).partition(" (")[0] for each in found.warnings] == [MOTTO]
    rights = Rights(everything=True)
    names = ("Resources", "Sites", "S")
    other = proposals.propose_edits(found, found, [Edit(names=(*names, "Name"), value="S")], rights)
    assert other.warnings == ()
    with pytest.raises(ConfigError, match="Resources/Sites/S/Name: has 4097 characters"):
        proposals.propose_edits(found, found, [Edit(names=(*names, "Name"), value="x" * 4097)], rights)
    assert import_file(engine, tmp_path / "grid.yaml", now) == 2
    (tmp_path / "grid.yaml").write_text(f"{LONG}# another comment\n")
    assert import_file(engine, tmp_path / "grid.yaml", now) == 3


@pytest.mark.parametrize("stated", ["-3", "0", "1000000000", "abc", '"10,8"', "[1, 2]", "true"])
def test_a_benchmark_without_bounds_of_an_earlier_release_stays_but_none_is_added(
    engine: Engine, now: datetime, stated: str
) -> None:
    text = f"Resources: {{Sites: {{S: {{HEPScore23: {stated}, CEs: {{C: {{Queues: {{Q: }}}}}}}}}}}}\n"
    fault = "Resources/Sites/S/HEPScore23: .* is not allowed here, allowed is a number from 0.001 to 10000"
    with pytest.raises(ConfigError, match=fault):
        store(engine, text, now)
    with database.writing(engine) as conn:
        as_before = validate.parse(text, kept=None)
        versions_store.store_checked(conn, as_before, author="1.0.0", message="", expected=0, now=now)
        found = versions_store.load_version(conn)
    [warning] = found.warnings
    assert re.match(fault, str(warning))
    names = ("Resources", "Sites", "S")
    rights = Rights(everything=True)
    proposals.propose_edits(found, found, [Edit(names=(*names, "Name"), value="S")], rights)
    with pytest.raises(ConfigError, match="HEPScore23"):
        proposals.propose_edits(
            found, found, [Edit(names=(*names, "CEs", "C", "HEPScore23"), value=-1)], rights
        )


def test_a_size_of_gpus_below_zero_is_refused(engine: Engine, now: datetime) -> None:
    with pytest.raises(ConfigError, match=r"Resources/Sites/S/GPUMemory: '-1' is not allowed"):
        store(engine, "Resources: {Sites: {S: {GPUMemory: -1}}}\n", now)
