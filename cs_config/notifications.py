"""Topics to publish after commit, so that other processes refresh at once and not at their next poll.

Writers record a topic on the connection; `database.writing` publishes it after the commit. A notification has
no content: a lost one only delays the refresh until the next poll.
"""

from typing import Final

from sqlalchemy import Connection

#: New rows in the change feed.
CHANGES: Final = "changes"
#: A new version of the configuration.
CONFIGURATION: Final = "configuration"
TOPICS: Final = frozenset({CHANGES, CONFIGURATION})

_NOTED: Final = "topics to publish"


def publish_after_commit(conn: Connection, topic: str) -> None:
    """Publish a topic when the transaction is committed, and only then."""
    conn.info.setdefault(_NOTED, set()).add(topic)


def take_topics(conn: Connection) -> frozenset[str]:
    """Remove and return the topics recorded on this connection."""
    return frozenset(conn.info.pop(_NOTED, ()))
