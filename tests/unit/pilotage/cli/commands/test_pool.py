from collections.abc import Sequence
from typing import Any

import pytest

from pilotage.cli.commands import pool


@pytest.mark.parametrize("number", [1, 20, 45])
def test_the_pools_of_many_queues_are_requested_for_twenty_at_a_time(number: int) -> None:
    requests: list[int] = []

    class Client:
        def submit_pools(self, queues: Sequence[str]) -> dict[str, Any]:
            requests.append(len(queues))
            return {"pools": {each: ["p"] for each in queues[1:]}, "unknown": [{"queue": queues[0]}]}

    queues = [f"A.B.ch/ce/q{each}" for each in range(number)]
    found = pool.fetch_pools(Client(), queues)  # type: ignore[arg-type]
    assert sorted([*found["pools"], *(each["queue"] for each in found["unknown"])]) == sorted(queues)
    assert sum(requests) == number
    assert max(requests) <= 20
