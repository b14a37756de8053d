"""Notifications between processes through Redis' publish and subscribe; nothing is stored there."""

from threading import Event

from redis import Redis
from redis.backoff import NoBackoff
from redis.exceptions import RedisError
from redis.retry import Retry

from cs_config import notifications
from taskqueue.db.notify import Listener, TransportDownError

#: Seconds between two tests of the stop event.
_POLL_SECONDS = 0.2
#: A channel, not a key; each message is a topic of `cs_config.notifications`.
REDIS_CHANNEL = "pilotage:rings"
#: Timeout of Redis in seconds.
_TIMEOUT = 1.0
#: Seconds of silence after which a listener pings Redis.
_SILENCE = 5


class RedisTransport:
    """Safe in several threads and after a fork. Methods raise TransportDownError if Redis is away."""

    def __init__(self, redis_url: str) -> None:
        self._redis = Redis.from_url(
            redis_url,
            socket_timeout=_TIMEOUT,
            socket_connect_timeout=_TIMEOUT,
            health_check_interval=_SILENCE,
            retry=Retry(NoBackoff(), 0),
        )

    def send(self, topics: frozenset[str]) -> None:
        """Send to all listeners."""
        try:
            for topic in sorted(topics):
                self._redis.publish(REDIS_CHANNEL, topic)
        except RedisError as error:
            raise TransportDownError(f"Redis: {error}") from error

    def listen(self, heard: Listener, stop: Event) -> None:
        """Listen until `stop` is set."""
        try:
            with self._redis.pubsub() as subscription:  # type: ignore[no-untyped-call]
                subscription.subscribe(REDIS_CHANNEL)
                while not stop.is_set():
                    message = subscription.get_message(timeout=_POLL_SECONDS)
                    if message is None:
                        continue
                    # The subscription is confirmed first: earlier notifications were missed.
                    is_topic = message["type"] == "message"
                    heard(frozenset({message["data"].decode()}) if is_topic else notifications.TOPICS)
        except RedisError as error:
            raise TransportDownError(f"Redis: {error}") from error
