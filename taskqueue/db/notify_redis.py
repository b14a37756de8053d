"""Notification transport over Redis publish and subscribe; nothing is stored there."""

from threading import Event

from redis import Redis
from redis.backoff import NoBackoff
from redis.exceptions import RedisError
from redis.retry import Retry

from cs_config import notifications
from taskqueue.db.notify import Listener, TransportDownError

#: No key: a channel, where each message is a topic of `rings`.
CHANNEL = "pilotage:rings"
#: Seconds between looks whether to stop.
_POLL_SECONDS = 0.2
#: Seconds that Redis may take to answer.
_PATIENCE = 1.0
#: Seconds of silence after which a listener asks whether Redis is there.
_SILENCE = 5


class RedisTransport:
    """Safe in several threads and after a fork."""

    def __init__(self, redis_url: str) -> None:
        self._redis = Redis.from_url(
            redis_url,
            socket_timeout=_PATIENCE,
            socket_connect_timeout=_PATIENCE,
            health_check_interval=_SILENCE,
            retry=Retry(NoBackoff(), 0),
        )

    def send(self, topics: frozenset[str]) -> None:
        """Tell all who listen.

        Raises:
            WireDownError: Redis is away.
        """
        try:
            for topic in sorted(topics):
                self._redis.publish(CHANNEL, topic)
        except RedisError as error:
            raise TransportDownError(f"Redis: {error}") from error

    def listen(self, heard: Listener, stop: Event) -> None:
        """Listen until told to stop.

        Raises:
            WireDownError: Redis is away.
        """
        try:
            with self._redis.pubsub() as subscription:  # type: ignore[no-untyped-call]
                subscription.subscribe(CHANNEL)
                while not stop.is_set():
                    message = subscription.get_message(timeout=_POLL_SECONDS)
                    if message is None:
                        continue
                    # The confirmation comes first: what was rung for until now was missed.
                    is_ring = message["type"] == "message"
                    heard(frozenset({message["data"].decode()}) if is_ring else notifications.TOPICS)
        except RedisError as error:
            raise TransportDownError(f"Redis: {error}") from error
