"""The memory of a slot while several payloads live on it.

A payload may use what others leave. When all together use more than the slot has, the one that is furthest
beyond its own part is ended. The parts are never more than the slot, so whoever keeps to its part is safe.
"""

from __future__ import annotations

import threading
from typing import Callable

from pilotage.fabric.pilot.limits import OUT_OF_MEMORY, Excess

_MB = 1 << 20


class Memory:
    """What payloads use of the slot's memory, as each was measured last; safe to use from several threads."""

    def __init__(self, capacity_mb: int | None) -> None:
        """Make it; None: nobody knows how much there is, so nobody uses too much."""
        self._capacity = None if capacity_mb is None else capacity_mb * _MB
        self._accounts: dict[Account, int] = {}
        self._lock = threading.Lock()

    def account(self, part_mb: int | None) -> Account:
        """A payload that begins now, with its own part."""
        return Account(self, (part_mb or 0) * _MB)

    def is_crowded(self, account: Account, used: int) -> bool:
        """Whether all together use more than there is, now that this payload uses so many bytes."""
        with self._lock:
            self._accounts[account] = used
            return self._capacity is not None and sum(self._accounts.values()) > self._capacity

    def is_furthest(self, account: Account) -> bool:
        """Whether no other payload is further beyond its part."""
        with self._lock:
            return account is max(self._accounts, key=lambda each: self._accounts[each] - each.part)

    def forget(self, account: Account) -> None:
        """The payload has ended."""
        with self._lock:
            self._accounts.pop(account, None)


class Account:
    """One payload's side of it."""

    def __init__(self, memory: Memory, part: int) -> None:
        self.part = part  #: bytes that are its own
        self._memory = memory

    def passed(self, resident: int, proportional: Callable[[], int | None]) -> Excess | None:
        """The excess if the slot has too little for all and this payload is to blame.

        Args:
            resident: Bytes that it uses, where memory that several processes share counts for each.
            proportional: Tells the true sum, None where the host does not; asked only if it matters.
        """
        if not self._memory.is_crowded(self, resident):
            return None
        used = proportional()
        used = resident if used is None else used
        if not self._memory.is_crowded(self, used) or not self._memory.is_furthest(self):
            return None
        detail = f"kept for it {self.part // _MB} MB, used {used // _MB} MB, and the slot has no more"
        return Excess(OUT_OF_MEMORY, detail)

    def close(self) -> None:
        """The payload has ended."""
        self._memory.forget(self)
