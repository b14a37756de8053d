"""What an explanation says first: what holds the job now, not the first of several equal texts."""

import pytest

from matcher.explain import headline
from matcher.explain.blockers import HoldingText
from requirements.states import JobStatus


@pytest.mark.parametrize(
    ("status", "numbers", "obstacles", "text", "is_held"),
    [
        (JobStatus.WAITING, (0, 0, 0), ["x"], "There is no queue that its VO may use.", True),
        (
            JobStatus.WAITING,
            (0, 0, 210),
            [],
            "No queue fits: each of the 210 that its VO may use fails a requirement.",
            True,
        ),
        (
            JobStatus.WAITING,
            (21, 0, 210),
            ["it is in tier 2", HoldingText("A is throttled (62 of 50)"), HoldingText("no pilot came")],
            "21 of the 210 queues that its VO may use fit, but A is throttled (62 of 50).",
            True,
        ),
        (
            None,
            (21, 5, 210),
            ["4 pilots requested work"],
            "21 of the 210 queues that its VO may use fit; 5 of them are open now.",
            False,
        ),
        (JobStatus.WAITING, (1, 1, 1), [], "The only queue that its VO may use fits.", False),
        (
            JobStatus.FAILED,
            (1, 1, 1),
            [],
            "It is Failed: it no longer waits. Submitted now, the only queue that its VO may use would fit.",
            False,
        ),
        (
            JobStatus.DONE,
            (180, 180, 210),
            [],
            (
                "It is Done: it no longer waits. "
                "Submitted now, 180 of the 210 queues that its VO may use would fit."
            ),
            False,
        ),
    ],
)
def test_the_headline_is_what_holds_the_job(
    status: JobStatus | None, numbers: tuple[int, int, int], obstacles: list[str], text: str, is_held: bool
) -> None:
    eligible, open_, candidates = numbers
    found = headline.summarize(
        status, eligible=eligible, open_=open_, candidates=candidates, obstacles=obstacles
    )
    assert (found.text, found.is_held) == (text, is_held)
