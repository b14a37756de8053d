"""Reading text in the ClassAd language: job descriptions (JDL) and resource ads."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Unevaluated:
    """An expression that stands where a value might: its text as written."""

    text: str


def parse_ad(text: str, file: str | None = None) -> dict[str, object]:
    """The attributes of an ad, in the order and spelling in which they are written."""
    raise NotImplementedError
