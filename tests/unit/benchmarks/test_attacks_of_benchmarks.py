import pytest

from benchmarks import hostile
from benchmarks.http_load import Held


@pytest.mark.parametrize("name", list(hostile.ATTACKS))
def test_an_attack_and_its_ordinary_counterpart_are_requests_with_a_token(name: str) -> None:
    attack = hostile.ATTACKS[name]
    for make in (attack.hostile, attack.honest):
        content = make("a" * 40, 3)
        head, _, body = content.partition(b"\r\n\r\n")
        assert b" HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer aaa" in head
        length = int((head.lower() + b"\r\n").partition(b"content-length: ")[2].split(b"\r\n")[0] or 0)
        assert isinstance(content, Held) or len(body) == length


@pytest.mark.parametrize(
    "name", ["1,000 different Requirements", "40 long expressions are submitted", "wrong tokens"]
)
def test_what_is_cached_is_not_sent_again(name: str) -> None:
    make = hostile.ATTACKS[name].hostile
    assert len({make("a" * 40, number) for number in range(20)}) == 20
