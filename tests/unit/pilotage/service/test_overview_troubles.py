"""Problems of the overview: an installation without a queue is no calm one."""

import dataclasses

from pilotage.service.queries.overview import OverviewTroubles


def test_an_installation_without_a_queue_has_a_problem() -> None:
    calm = OverviewTroubles(
        stuck_pools=0,
        stuck_jobs=0,
        banned=[],
        throttled=[],
        stale=[],
        silent=[],
        down=[],
        configuration=None,
        is_unconfigured=False,
        optimizers=None,
    )
    assert calm.are_none
    assert not dataclasses.replace(calm, is_unconfigured=True).are_none
