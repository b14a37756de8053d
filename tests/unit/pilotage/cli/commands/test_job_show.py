import io

from rich.console import Console

from pilotage.cli import output
from pilotage.cli.commands import job_show


def told(renderable) -> str:
    console = Console(width=200, file=io.StringIO(), record=True)
    console.print(renderable)
    return console.export_text()


def test_a_description_that_was_not_submitted_is_told_with_what_helps():
    found = {
        "job_id": None,
        "status": None,
        "eligible_queues": 0,
        "candidate_queues": 3,
        "sites": ["LCG.A.org", "LCG.B.org"],
        "reasons": [
            {
                "requirement": "Memory",
                "wanted": "at least 9000 MB",
                "excluded": 3,
                "only_this": 2,
                "example": {"queue": "A/b/c", "has": "4000"},
            },
            {"requirement": "OS", "wanted": "el9", "excluded": 1, "only_this": 0, "example": None},
        ],
        "changes": [{"change": "lower [it]", "gains": 2, "example": "A/b/c"}],
        "left_out": ["not every change was tried"],
        "now": ["no eligible queue"],
    }
    text = told(job_show.explain_job(found))
    assert "Not submitted: 0 of 3 queues are eligible." in text
    assert "Sites with an eligible queue: LCG.A.org, LCG.B.org" in text
    assert "lower [it]" in text
    [memory] = (line.split() for line in text.splitlines() if line.strip().startswith("Memory"))
    assert memory == ["Memory", "at", "least", "9000", "MB", "3", "2", "A/b/c", "4000"]
    assert "el9" in text
    assert "Left out: not every change was tried" in text
    assert "At this moment: no eligible queue" in text


def test_of_a_job_that_has_ended_is_told_what_would_have_helped():
    headline = (
        "It is Killed: it no longer waits. Submitted now, 1 of the 3 queues that its VO may use would fit."
    )
    changes = [{"change": "leave out Site", "gains": 2, "open_now": 1, "example": "A/b/c"}]
    found = {"job_id": 7, "status": "Killed", "headline": headline, "changes": changes, "reasons": []}
    text = told(job_show.explain_job({**found, "eligible_queues": 1, "candidate_queues": 3}))
    assert f"Job 7. {headline}" in text
    assert "What would have helped" in text


def test_a_queue_is_told_with_what_it_loses_and_could_do():
    work = {"jobs": 4, "classes": 2}
    found = {
        "queue": "A/b/c",
        "waiting": {"cms": work},
        "serves": {},
        "reasons": [
            {
                "requirement": "MinRAM",
                "has": "2000",
                "jobs": 4,
                "classes": 2,
                "only_this": 3,
                "example": {"vo": "cms", "job_id": 7, "wanted": "at least 4000 MB"},
            }
        ],
        "changes": [{"offer": "offer MaxRAM 4000 MB", "gains": 3, "vos": ["cms"]}],
        "left_out": {"cms": {"jobs": 3, "classes": 2}, "dune": {"jobs": 1, "classes": 1}},
    }
    text = told(job_show.explain_queue(found))
    assert "Of 4 of them, with 3 other sets of requirements, nothing was computed." in text
    assert "A/b/c may run 0 of 4 waiting jobs." in text
    assert "at least 4000 MB" in text
    assert "offer MaxRAM 4000 MB" in text


def test_what_an_attempt_used_stands_beside_what_was_asked():
    attempt = {
        "asked": {"memory_mb": 8000, "scratch_mb": None, "cpu_seconds": 3600.0},
        "used": {"memory_mb": 1130, "scratch_mb": 20, "cpu_seconds": None},
    }
    lines = [
        line.split() for line in told(job_show.render_job({"job_id": 7, "attempt": attempt})).splitlines()
    ]
    assert ["Memory,", "MB", "8,000", "1,130"] in lines
    assert ["Scratch,", "MB", "–", "20"] in lines
    assert ["CPU", "time,", "s", "3,600", "–"] in lines


def test_each_retry_by_a_rule_has_a_line():
    note = "Application Finished With Errors, exit code 137; MinRAM 1000 → 1500; retry 1 of 2"
    retried = {"epoch": 1, "at": "2026-03-28T12:00:00Z", "note": note}
    text = " ".join(told(job_show.render_job({"job_id": 7, "attempt": None, "retries": [retried]})).split())
    assert "Retried by a rule" in text
    assert "MinRAM 1000 → 1500; retry 1 of 2" in text


def test_each_thing_that_a_job_gave_up_has_a_line():
    relaxed = {"at": "2026-03-28T12:00:00Z", "note": "after 2 h: MinRAM 4000 → 2000"}
    text = " ".join(
        told(job_show.render_job({"job_id": 7, "attempt": None, "relaxations": [relaxed]})).split()
    )
    assert "By a rule, for it waited long" in text
    assert "after 2 h: MinRAM 4000 → 2000" in text


def test_long_expressions_are_cut_so_that_a_table_stays_readable():
    long = "other.A == 1 || " * 1_000 + "other.Z == 2"
    reason = {"requirement": "Requirements", "wanted": long, "excluded": 3, "only_this": 3, "example": None}
    found = {
        "job_id": 7,
        "status": "Waiting",
        "eligible_queues": 0,
        "candidate_queues": 3,
        "reasons": [reason],
        "changes": [{"change": f"leave out `{long}`", "gains": 2, "example": "A/b/c"}],
        "now": [f"A is throttled ({long} is not true)"],
    }
    text = told(job_show.explain_job(found))
    assert len(text) < 10_000
    assert f"({len(found['now'][0])} characters)" in text


def test_the_log_shows_the_application_status_of_each_change() -> None:
    entry = {
        "at": "2026-03-28T12:00:00Z",
        "from": "Running",
        "to": "Stalled",
        "minor": "The pilot of this job has ended",
        "application": "NODE_FAIL: NodeDown",
        "source": "LostJobAgent",
        "epoch": 1,
    }
    assert "NODE_FAIL: NodeDown" in told(output.list_table(job_show._LOG, [entry]))


def test_the_headline_of_an_explanation_comes_first_and_gains_have_two_numbers() -> None:
    found = {
        "job_id": 7,
        "status": "Waiting",
        "headline": "21 of the 210 queues that its VO may use fit, but A is banned: fire.",
        "eligible_queues": 21,
        "candidate_queues": 210,
        "reasons": [],
        "changes": [{"change": "leave out Site", "gains": 45, "open_now": 3, "example": "A/b/c"}],
    }
    first, *lines = told(job_show.explain_job(found)).splitlines()
    assert first.startswith("Job 7 is Waiting. 21 of the 210 queues that its VO may use fit, but A is banned")
    [change] = [line.split() for line in lines if "leave out" in line]
    assert change == ["leave", "out", "Site", "45", "3", "A/b/c"]


def test_queues_closed_to_the_vo_are_told_beside_the_table_of_requirements():
    closed = "15 queues switched off; 1 of them would do otherwise"
    required = {"requirement": "OS", "wanted": "el9", "excluded": 6, "only_this": 6, "example": None}
    off = {"requirement": "Enabled", "wanted": "a queue that is switched on", "excluded": 15, "only_this": 1}
    example = {"queue": "A/b/c", "has": "false"}
    reasons = [{**off, "closed": closed, "example": example}, {**required, "closed": None}]
    found = {"job_id": 7, "status": "Waiting", "headline": "No queue fits.", "reasons": reasons}
    text = told(job_show.explain_job({**found, "eligible_queues": 0, "candidate_queues": 6}))
    assert f"Closed to its VO: {closed}, such as A/b/c" in text
    assert "a queue that is switched on" not in text
