"""The part of the overview page about the optimizers behind Redis."""

import httpx
import pytest

from taskqueue.jobs.optimizer_queue import OptimizerQueueState
from tests.support.service import Service


@pytest.mark.parametrize(
    ("state", "shown"),
    [
        (None, "Nothing"),
        (
            OptimizerQueueState(workers=2, waiting=7, outcomes={("Requirements", "Done"): 12}),
            "Batches waiting",
        ),
        (OptimizerQueueState(waiting=7), "no worker listens"),
        (OptimizerQueueState(problem="connection refused"), "connection refused"),
    ],
)
def test_operators_see_the_queue_of_the_optimizers(
    service: Service, monkeypatch: pytest.MonkeyPatch, state: OptimizerQueueState | None, shown: str
) -> None:
    object.__setattr__(service.parts, "optimizer_queue", lambda: state)

    def open_page(role: str) -> httpx.Response:
        wishes = {"vo": "cms", "user": "ada"} if role == "user" else {}
        cookie = f"pilotage-{httpx.URL(service.url).port}={service.token(role, **wishes)}"
        return service.client().get(
            "/", params={"part": "course"}, headers={"HX-Request": "true", "Cookie": cookie}
        )

    page = open_page("operator")
    assert page.status_code == 200, page.text[:500]
    assert shown in page.text
    assert "Batches waiting" not in open_page("user").text
