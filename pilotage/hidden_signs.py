"""Signs by which texts of others may give orders to a terminal, or hide or reorder what stands there."""

import json
import re
from typing import Final

#: Control characters of ASCII but for tabs and ends of lines, and of Latin-1; marks of direction and width.
_HIDDEN: Final = re.compile(
    "[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\xad\u061c\u180e\u200b-\u200f\u2028-\u202e\u2060-\u206f"
    "\ufeff\ufff9-\ufffb\U000e0000-\U000e007f]|\r(?!\n)"
)


def escape(text: str) -> str:
    """The text with these signs as JSON escapes them in a string, by their numbers."""
    return _HIDDEN.sub(lambda sign: json.dumps(sign[0])[1:-1], text)
