"""A matcher of the last release, for tests of limits beside it; its modules are those of the unpacked wheel.

`python -P tests/support/scripts/earlier_matcher.py URL TREE TIME SEED ROUNDS`; TREE has documents
separated by `---`, the configurations of versions 1, 2, …; each round uses one of them, claims, and ends
what it got in some way.
"""

import random
import sys
import time
from datetime import datetime
from functools import partial
from pathlib import Path
from random import Random

from cs_config import validate
from cs_config.tree.configuration import Configuration
from matcher.claim.matcher import Matcher
from matcher.request import match_request
from matcher.request.match_request import MatchCaller, MatchRequest
from taskqueue.db import database, postgresql
from taskqueue.leases import lifecycle

_PLACES = ({"Queue": "long"}, {"Queue": "short"})


def _return(config: Configuration) -> Configuration:
    return config


def main(url: str, trees: str, at: str, seed: str, rounds: str) -> None:
    """Claim and end jobs."""
    postgresql.SET_LIMITS = "SELECT 1"  # however slow the machine is
    engine = database.connect(url, pool_timeout=300.0, busy_timeout=300.0)
    now, draw = datetime.fromisoformat(at), Random(int(seed))
    texts = Path(trees).read_text().split("---\n")
    held: list[str] = []
    for number in range(int(rounds)):
        version = 1 + draw.randrange(len(texts)) if number < int(rounds) // 2 else len(texts)
        config = validate.parse(texts[version - 1], "grid.yaml", version)
        matcher = Matcher(engine, partial(_return, config), lambda: now, random.Random(number))
        presented = {"CPUTime": 10**7, "Site": "A.B.ch", "GridCE": "ce1", **draw.choice(_PLACES)}
        presented |= draw.choice(({}, {"NumberOfProcessors": 8}))
        request = MatchRequest(
            presented=match_request.read_resource(presented),
            caller=MatchCaller(subject="pilot", vos=frozenset({"lhcb"})),
            deadline=time.monotonic() + 300,
            count=draw.choice((1, 1, 3)),
        )
        for _ in range(3):
            [found] = matcher.serve([request])
            matcher.settle([found])
            held += [each.lease for each in getattr(found, "claimed", ())]
        for _ in range(min(len(held), draw.randint(0, 3))):
            with database.writing(engine) as conn:
                lifecycle.recall(conn, held.pop(), reason="", now=now)
    sys.stdout.write(f"{Path(database.__file__).parents[2]}\n")


if __name__ == "__main__":
    main(*sys.argv[1:])
