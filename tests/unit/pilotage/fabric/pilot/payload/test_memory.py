"""Who is ended when payloads together use more memory than their slot has."""

from pilotage.fabric.pilot.payload.monitor import OUT_OF_MEMORY, MemoryAccount, SlotMemory

MB = 1 << 20


def passed(account: MemoryAccount, used_mb: int, *, truly_mb: int | None = None) -> bool:
    excess = account.passed(used_mb * MB, lambda: (used_mb if truly_mb is None else truly_mb) * MB)
    assert excess is None or excess.minor_status == OUT_OF_MEMORY
    return excess is not None


def test_what_others_leave_may_be_used() -> None:
    memory = SlotMemory(1000)
    modest, large = memory.account(500), memory.account(500)
    assert not passed(modest, 100)
    assert not passed(large, 900)


def test_the_one_furthest_beyond_its_part_is_to_blame() -> None:
    memory = SlotMemory(1000)
    small, modest, large = memory.account(100), memory.account(500), memory.account(400)
    assert not passed(large, 450)
    assert not passed(small, 200)
    assert not passed(modest, 490)
    assert not passed(large, 450)
    assert passed(small, 200)


def test_who_keeps_to_its_part_is_never_ended() -> None:
    memory = SlotMemory(1000)
    modest, large = memory.account(600), memory.account(400)
    assert passed(large, 5000)
    assert not passed(modest, 600)
    assert passed(large, 5000)


def test_what_has_ended_uses_nothing() -> None:
    memory = SlotMemory(1000)
    gone, left = memory.account(500), memory.account(500)
    passed(gone, 900)
    gone.close()
    assert not passed(left, 1000)


def test_memory_that_processes_share_counts_once() -> None:
    memory = SlotMemory(1000)
    forked = memory.account(1000)
    assert not passed(forked, 3000, truly_mb=900)
    assert passed(forked, 3000, truly_mb=1100)


def test_where_nobody_knows_the_memory_nobody_is_ended() -> None:
    assert not passed(SlotMemory(None).account(None), 10**6)
