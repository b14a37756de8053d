"""What an explanation says first: what holds the job now, not the first of several equal texts."""

import pytest

from matcher.explain import headline
from matcher.explain.blockers import HoldingText
from requirements.states import JobStatus

OF_210 = "21 of the 210 queues that its VO may use"
AWAY = "It is {}: it no longer waits. Submitted now, "
OBSTACLES = ["it is in tier 2", HoldingText("A is throttled (62 of 50)"), HoldingText("no pilot came")]


@pytest.mark.parametrize(
    ("status", "numbers", "obstacles", "text", "is_held"),
    [
        ("Waiting", (0, 0, 0), ["x"], "There is no queue that its VO may use.", True),
        (
            "Waiting",
            (0, 0, 210),
            [],
            "No queue fits: each of the 210 that its VO may use fails a requirement.",
            True,
        ),
        ("Waiting", (21, 0, 210), OBSTACLES, f"{OF_210} fit, but A is throttled (62 of 50).", True),
        (None, (21, 5, 210), ["4 pilots requested work"], f"{OF_210} fit; 5 of them are open now.", False),
        ("Waiting", (1, 1, 1), [], "The only queue that its VO may use fits.", False),
        (
            "Failed",
            (1, 1, 1),
            [],
            f"{AWAY.format('Failed')}the only queue that its VO may use would fit.",
            False,
        ),
        ("Done", (21, 21, 210), [], f"{AWAY.format('Done')}{OF_210} would fit.", False),
    ],
)
def test_the_headline_is_what_holds_the_job(
    status: str | None, numbers: tuple[int, int, int], obstacles: list[str], text: str, is_held: bool
) -> None:
    eligible, open_, candidates = numbers
    found = headline.summarize(
        None if status is None else JobStatus(status),
        eligible=eligible,
        open_=open_,
        candidates=candidates,
        obstacles=obstacles,
    )
    assert (found.text, found.is_held) == (text, is_held)
