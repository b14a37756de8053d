import io
from typing import Any

from rich.console import Console

from pilotage.cli.commands.job import WaitingBars


def _job(done: int, *, name: str = "generated") -> dict[str, Any]:
    return {"attempt": {"phases": [{"name": name, "done": done, "of": 250, "unit": "events"}]}}


def _terminal() -> Console:
    return Console(file=io.StringIO(), force_terminal=True, width=100, color_system=None)


def _shown(console: Console) -> str:
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


def test_a_grid_job_shows_how_far_each_of_its_phases_is() -> None:
    console = _terminal()
    with WaitingBars(1, lambda _: _job(117), console=console) as bars:
        bars.show(ended=0, total=1, running=[7])
    assert "generated" in _shown(console)
    assert "117 of 250 events" in _shown(console)
    assert "0 of 1 job" in _shown(console)


def test_phases_are_asked_for_again_only_after_a_while() -> None:
    asked: list[int] = []
    now = [0.0]

    def job(job_id: int) -> dict[str, Any]:
        asked.append(job_id)
        return _job(len(asked))

    console = _terminal()
    with WaitingBars(2, job, console=console, clock=lambda: now[0]) as bars:
        bars.show(ended=0, total=2, running=[7])
        now[0] = 1.0
        bars.show(ended=0, total=2, running=[7])
        assert asked == [7]
        now[0] = 3.0
        bars.show(ended=0, total=2, running=[7])
    assert asked == [7, 7]
    assert "7 generated" in _shown(console)
    assert "2 of 250 events" in _shown(console)


def test_the_bars_of_a_job_that_has_ended_go() -> None:
    now = [0.0]
    with WaitingBars(2, lambda _: _job(1), console=_terminal(), clock=lambda: now[0]) as bars:
        bars.show(ended=0, total=2, running=[7, 8])
        now[0] = 5.0
        bars.show(ended=1, total=2, running=[8])
        assert [task.description for task in bars._progress.tasks] == ["Waiting", "8 generated"]


def test_a_phase_with_brackets_in_its_name_is_shown_as_it_is() -> None:
    console = _terminal()
    with WaitingBars(1, lambda _: _job(1, name="[red]x[/]"), console=console) as bars:
        bars.show(ended=0, total=1, running=[7])
    assert "[red]x[/]" in _shown(console)


def test_nobody_is_asked_for_phases_where_there_is_no_terminal() -> None:
    def job(job_id: int) -> dict[str, Any]:
        raise AssertionError(job_id)

    console = Console(file=io.StringIO(), force_terminal=False)
    with WaitingBars(1, job, console=console) as bars:
        bars.show(ended=0, total=1, running=[7])
    assert not _shown(console)
