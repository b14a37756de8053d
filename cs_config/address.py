"""The address of a batch queue."""

from dataclasses import dataclass

from cs_config.names import NAME, NAME_ALLOWED
from requirements.errors import InvalidRequest
from requirements.problem import Problem


@dataclass(frozen=True, slots=True, kw_only=True, order=True)
class QueueAddress:
    """Where a batch queue is: behind a CE of a site."""

    site: str
    ce: str
    queue: str

    def __str__(self) -> str:
        return f"{self.site}/{self.ce}/{self.queue}"

    @property
    def path(self) -> str:
        """Its place in the configuration."""
        return f"Resources/Sites/{self.site}/CEs/{self.ce}/Queues/{self.queue}"

    @classmethod
    def parse(cls, text: str) -> "QueueAddress":
        """The address that is written `Site/CE/Queue`.

        Raises:
            InvalidRequest: It is not three names.
        """
        parts = text.split("/")
        if len(parts) != 3 or not all(NAME.fullmatch(part) for part in parts):
            message = (
                f"{text[:400]!r} is no address of a queue, which is Site/CE/Queue, each of {NAME_ALLOWED}"
            )
            raise InvalidRequest([Problem(path="Queue", message=message)])
        return cls(site=parts[0], ce=parts[1], queue=parts[2])
