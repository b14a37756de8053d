"""Signals and logs of long-running processes."""

import json
import logging
import signal
import threading
from datetime import UTC, datetime


def stop_on_signals() -> threading.Event:
    """An event that Ctrl-C or SIGTERM sets, so that current work is finished first."""
    stop = threading.Event()
    for each in (signal.SIGINT, signal.SIGTERM):
        signal.signal(each, lambda *_: stop.set())
    return stop


#: Logger of requests, at the level `debug`.
_REQUESTS = "uvicorn.access"


class JsonLines(logging.Formatter):
    """Log lines as JSON objects."""

    def format(self, record: logging.LogRecord) -> str:
        """The record as JSON."""
        entry = {
            "at": datetime.fromtimestamp(record.created, UTC).isoformat(),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
        }
        if record.exc_info:
            entry["traceback"] = self.formatException(record.exc_info)
        return json.dumps(entry, default=str)


def configure_logs(level: str, *, as_json: bool = False) -> None:
    """Send the log of this process to standard error, as text or JSON."""
    handler = logging.StreamHandler()
    text = logging.Formatter("%(asctime)s %(levelname)-7s %(name)s: %(message)s")
    handler.setFormatter(JsonLines() if as_json else text)
    logging.basicConfig(level=level.upper(), handlers=[handler], force=True)
    logging.getLogger(_REQUESTS).addFilter(strip_query)


def strip_query(record: logging.LogRecord) -> bool:
    """Remove queries from log lines of requests: they hold one-time links and codes of issuers."""
    if isinstance(record.args, tuple):
        record.args = tuple(each.partition("?")[0] if isinstance(each, str) else each for each in record.args)
    return True
