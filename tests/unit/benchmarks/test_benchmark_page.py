from benchmarks import page


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
