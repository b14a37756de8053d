"""Telling what each round of a director or a gateway did."""

import json
import logging
import sys
from datetime import datetime
from typing import Protocol

from pilotage.cli import output

log = logging.getLogger(__name__)


class Summary(output.Record, Protocol):
    """What a round did; as a text in one line."""

    at: datetime
    away: list[str]  #: what could not be asked
    problems: list[str]


def tell(summary: Summary, *, as_json: bool) -> None:
    """Log what stood in its way, and print the rest: a line, or an object of JSON in one."""
    for line in (*summary.away, *summary.problems):
        log.warning("%s", line)
    if as_json:
        sys.stdout.write(json.dumps(output.fields(summary), default=str) + "\n")
    else:
        output.console().print(output.escape(f"{summary.at:%Y-%m-%d %H:%M:%SZ} {summary}"))
    sys.stdout.flush()
