"""Whether `pilotage doctor` names required values that were stored before they had bounds."""

from datetime import UTC, datetime
from pathlib import Path

from pilotage.cli import doctor, settings
from pilotage.cli.doctor import Health
from requirements import canonical
from requirements.classad.expression import Expression
from requirements.record import Record
from taskqueue.db import database
from taskqueue.pools import pools
from taskqueue.pools.pools import NewPool

NOW = datetime(2026, 3, 1, 12, tzinfo=UTC)


def test_pools_that_require_a_value_that_is_too_long_are_named(tmp_path: Path) -> None:
    chosen = settings.load({"home": tmp_path}, {})
    database.upgrade(chosen.database_url)
    engine = database.connect(chosen.database_url)
    required = [
        Record(values=(("CPUModel", "x" * 4096),)),
        Record(values=(("CPUModel", "x" * 4097), ("Memory", 4000))),
        Expression(text="||".join(["other.A"] * 2000)),
    ]
    with database.writing(engine) as conn:
        new = [
            NewPool(pool_id=f"{number}" * 64, vo="lhcb", requirements="{}", original=canonical.to_json(each))
            for number, each in enumerate(required)
        ]
        pools.touch_pools(conn, new, now=NOW)
    engine.dispose()
    bound = "allowed are 4096: its jobs are eligible nowhere"
    found = [each for each in doctor.check_database(chosen, NOW) if each.subject == "requirements"]
    assert [(each.health, each.message) for each in found] == [
        (
            Health.WARNING,
            f"of pool 111111111111, CPUModel has 4097 characters, {bound}",
        )
    ]
