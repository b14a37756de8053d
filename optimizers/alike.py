"""Steps to which jobs that ask the same are alike.

Such a step looks at nothing but the configuration and what a job asks: its description without the keywords
of `keywords.PARTICULAR`, its VO, how often it was taken back, which step held it, whether its sandbox is
gone. So it is asked once for all jobs that have these in common.
"""

from collections.abc import Callable
from typing import Any, Final, TypeVar

_MARK: Final = "_alike"

_Step = TypeVar("_Step", bound=Callable[..., Any])


def alike(step: _Step) -> _Step:
    """Mark a step: what it says of one job it says of all that ask the same."""
    setattr(step, _MARK, True)
    return step


def is_alike(step: Callable[..., Any] | None) -> bool:
    """Whether a step has the mark."""
    return getattr(step, _MARK, False)
