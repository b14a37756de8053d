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


def test_attacks_are_chosen_by_name(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("sys.argv", ["hostile", "heads do not end", "walls fall"])
    with pytest.raises(SystemExit):
        hostile.main()
    assert "no such attack: walls fall; there are a text is multiplied; " in capsys.readouterr().err
    chosen: list[object] = []
    monkeypatch.setattr("sys.argv", ["hostile", "--seconds", "2", "--turns", "1", "heads do not end"])
    monkeypatch.setattr(hostile, "measure", lambda names, **how: chosen.append((names, how)) or [])
    assert hostile.main() == 0
    assert chosen == [(["heads do not end"], {"seconds": 2.0, "turns": 1, "waiting": 1_000_000})]
