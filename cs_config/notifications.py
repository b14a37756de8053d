"""What a transaction rings for when it is committed: others then look at once, not at their next poll.

Noted on the connection, by whoever writes something that others follow; `database.writing` rings, after
the commit. A ring says where to look and carries nothing: one that is lost costs the time until the next
poll.
"""

from typing import Final

from sqlalchemy import Connection

#: There is something new in the feed of changes.
CHANGES: Final = "changes"
#: There is another version of the configuration.
CONFIGURATION: Final = "configuration"
TOPICS: Final = frozenset({CHANGES, CONFIGURATION})

_NOTED: Final = "rings after the commit"


def publish_after_commit(conn: Connection, topic: str) -> None:
    """Have a bell rung when the transaction is committed, and only then."""
    conn.info.setdefault(_NOTED, set()).add(topic)


def take_topics(conn: Connection) -> frozenset[str]:
    """What was noted on this connection; it is noted no longer."""
    return frozenset(conn.info.pop(_NOTED, ()))
