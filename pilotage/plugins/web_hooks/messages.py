"""Messages of web hooks: signature, and the result of a try to send one.

Source of their form and signature: Standard Webhooks (https://www.standardwebhooks.com).
"""

import hmac
from base64 import b64decode, b64encode
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import datetime
from hashlib import sha256
from typing import Final

#: Seconds of one try at most.
TRY_SECONDS: Final = 10.0


@dataclass(frozen=True, slots=True, kw_only=True)
class SendResult:
    """Result of a try to send a message."""

    answer: str  #: HTTP status, or what went wrong
    is_delivered: bool


#: Sends a body with headers to an address.
Send = Callable[[str, bytes, Mapping[str, str]], SendResult]


def sign(secret: str, delivery_id: int, body: bytes, *, now: datetime) -> dict[str, str]:
    """The headers of a message: its id, the time, and the signature over both and the body."""
    key = b64decode(secret.removeprefix("whsec_"))
    message_id, moment = f"msg_{delivery_id}", str(int(now.timestamp()))
    signed = f"{message_id}.{moment}.".encode() + body
    signature = b64encode(hmac.digest(key, signed, sha256)).decode()
    return {
        "Content-Type": "application/json",
        "webhook-id": message_id,
        "webhook-timestamp": moment,
        "webhook-signature": f"v1,{signature}",
    }
