from collections.abc import Callable, Mapping
from typing import Any

from pilotage.cli.commands import pilots


class Service:
    """Options of the service that record the filters which a command sends."""

    def __init__(self) -> None:
        self.sent: list[Mapping[str, str]] = []

    def pilot_summary(self, *, filters: Mapping[str, str], **_grouping: object) -> list[Any]:
        self.sent.append(filters)
        return []

    def show(self, fetch: Callable[["Service"], Any], render: Callable[[Any], object]) -> None:
        render(fetch(self))


def test_the_hours_of_a_summary_are_sent_as_an_age_which_the_service_counts_by_its_clock() -> None:
    service = Service()
    filters = pilots.PilotFilters(vo="cms")
    for hours in (24, 0.5, 0):
        pilots.summary(hours=hours, filters=filters, service=service)  # type: ignore[arg-type]
    assert service.sent == [{"vo": "cms", "since": f"{seconds}s"} for seconds in (86_400, 1800, 0)]
