"""Results of functions of users' texts are kept up to a number of bytes."""

import pytest

from requirements.classad import evaluation, restrictions
from requirements.kept import Kept, count_for, keep


def _counted(megabytes: int = 1) -> tuple[Kept[[str], int], list[str]]:
    computed: list[str] = []

    @keep(megabytes, lambda _, text: len(text))
    def measure(text: str) -> int:
        computed.append(text)
        return len(text)

    return measure, computed


def test_what_was_stored_first_goes_where_bytes_do_not_suffice() -> None:
    measure, computed = _counted()
    texts = [f"{number:05}" * 4000 for number in range(60)]  # 20 kB each
    for text in texts:
        assert measure(text) == 20_000
        assert measure(text) == 20_000
        assert 0 < measure.bytes <= 1 << 20
    assert computed == texts, "each was kept until others came"
    measure(texts[0])
    assert computed[-1] == texts[0], "the first one has gone"
    measure(texts[-1])
    assert len(computed) == 61, "the last one is there"


def test_many_short_ones_are_bounded_too() -> None:
    measure, _ = _counted()
    for number in range(5000):
        measure(str(number))
    assert 0 < measure.bytes <= 1 << 20
    measure.cache_clear()
    assert measure.bytes == 0


def test_what_takes_more_than_an_eighth_is_not_kept() -> None:
    measure, computed = _counted()
    for _ in range(2):
        measure("x" * (1 << 17))
    assert len(computed) == 2
    assert measure.bytes == 0


def test_a_vo_that_stores_without_end_removes_nothing_of_others() -> None:
    measure, computed = _counted()
    others = {vo: [f"{vo} {number}" * 200 for number in range(20)] for vo in ("biomed", "cms")}
    for vo, texts in others.items():
        with count_for(vo):
            for text in texts:
                measure(text)
    with count_for("lhcb"):
        for number in range(300):
            measure(f"{number:05}" * 4000)
    assert measure.bytes > measure.most // 2
    computed.clear()
    for text in (*others["biomed"], *others["cms"]):
        measure(text)
    assert not computed, "all of theirs are there"


def test_what_a_vo_has_above_an_equal_part_makes_room_for_others() -> None:
    measure, computed = _counted()
    flood = [f"{number:05}" * 4000 for number in range(60)]
    for vo in ("lhcb", "biomed"):
        with count_for(vo):
            for text in flood if vo == "lhcb" else [f"b{text}" for text in flood[:20]]:
                measure(text)
    computed.clear()
    for text in flood[:20]:
        measure(f"b{text}")
    assert not computed
    measure(flood[-1])
    assert not computed, "the last ones of lhcb, which was there first, have room beside them"


def test_results_may_state_for_whom_they_count() -> None:
    measure = Kept(str.upper, lambda _, text: len(text), 1 << 20, lambda text: text[:2])
    for number in range(100):
        measure(f"bb{number}" * 1000)
        measure(f"aa{number}" * 4000)
    shares = {tenant: share.bytes for tenant, share in measure._shares.items()}
    assert shares.keys() == {"AA", "BB"}
    assert sum(shares.values()) == measure.bytes <= measure.most


def test_a_result_that_is_none_is_kept() -> None:
    computed = list[str]()
    append = keep(1, lambda _, text: len(text))(computed.append)
    for _ in range(3):
        append("x")
    assert computed == ["x"]


def test_the_programs_of_long_expressions_are_kept_up_to_their_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    evaluation._compile_long.cache_clear()
    monkeypatch.setattr(evaluation._compile_long, "most", evaluation._compile_long.most // 10)
    text = " && ".join(f'(other.X{term} > {term} || other.Y == "a")' for term in range(100))
    for number in range(25):
        assert evaluation.is_true(f"{text} && other.Z == {number}", {"Y": "a", "Z": number})
        assert 0 < evaluation._compile_long.bytes <= evaluation._compile_long.most
    assert evaluation._compile_long.bytes > evaluation._compile_long.most // 2
    evaluation._compile_long.cache_clear()


def test_the_memory_of_regular_expressions_counts() -> None:
    evaluation._compile_short.cache_clear()
    assert evaluation.is_true('regexp("^el[789]$", OS)', {"OS": "el9"})
    small = evaluation._compile_short.bytes
    assert evaluation.is_true('regexp("^(.{1,20}){1,20}q", OS)', {"OS": "elq"})
    assert evaluation._compile_short.bytes - small > restrictions.MAX_MEMORY > small
