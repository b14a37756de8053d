from benchmarks import page
from benchmarks.results import Kept, Point, Result


def test_what_stands_between_marks_is_replaced_and_the_rest_stays():
    before = "# A\n<!-- bench: submit -->\nold\n<!-- bench end -->\ntext\n"

    after = page.filled(before, {"submit": "new"})

    assert after == "# A\n<!-- bench: submit -->\nnew\n<!-- bench end -->\ntext\n"


def test_a_benchmark_that_was_not_run_keeps_its_table():
    before = "<!-- bench: submit -->\nold\n<!-- bench end -->\n<!-- bench: pools -->\n<!-- bench end -->\n"

    after = page.filled(before, {"pools": "new"})

    assert after == before.replace("pools -->\n", "pools -->\nnew\n")


def test_a_table_has_every_column_that_a_row_has():
    written = page.markdown([{"what": "a", "jobs/s": 12_345}, {"what": "b", "ms": 0.5}])

    assert written.splitlines() == [
        "| what | jobs/s | ms |",
        "| --- | --: | --: |",
        "| a | 12,345 |  |",
        "| b |  | 0.5 |",
    ]


def test_a_benchmark_shows_its_plots_once_and_then_its_table():
    points = [Point(plot="submit", line="ours", x=1, y=2)]
    results = [Result(values={"what": "a"}, points=points), Result(values={"what": "b"}, points=points)]
    about = {"machine": "m", "python": "3", "commit": "c", "quick": True, "seconds": 1}

    shown = page.parts([Kept(name="submit", about=about, results=results)])["submit"]

    assert shown.splitlines() == [
        "![Submission until Waiting](benchmarks/submit.svg)",
        "",
        "| what |",
        "| --- |",
        "| a |",
        "| b |",
    ]


def test_targets_of_benchmarks_that_were_not_run_stand_as_not_measured():
    assert "not measured" in page.parts([])["targets"]
