import pytest

from cs_config import validate
from cs_config.tree.address import QueueAddress
from requirements.errors import InvalidRequest


def test_an_address_is_written_with_slashes() -> None:
    address = QueueAddress.parse("LCG.CERN.ch/ce01.cern.ch:9619/long@x+y_z")
    assert address == QueueAddress(site="LCG.CERN.ch", ce="ce01.cern.ch:9619", queue="long@x+y_z")
    assert str(address) == "LCG.CERN.ch/ce01.cern.ch:9619/long@x+y_z"


@pytest.mark.parametrize(
    "text", ["", "a", "a/b", "a/b/c/d", "a//c", "a/b/c d", "a/b/é", "a/b/c\n", "x" * 200 + "/b/c"]
)
def test_what_is_no_address_is_refused(text: str) -> None:
    with pytest.raises(InvalidRequest, match="is not an address of a queue"):
        QueueAddress.parse(text)


def test_an_unknown_queue_gets_a_suggestion() -> None:
    config = validate.parse(
        "Resources: {Sites: {S.a.ch: {CEs: {ce1: {Queues: {long: , short: }}}},"
        " S.b.ch: {CEs: {ce1: {Queues: {long: }}}}}}"
    )
    assert not config.knows(QueueAddress.parse("S.a.ch/ce1/lng"))
    assert config.suggest("S.a.ch/ce1/lng") == "S.a.ch/ce1/long"
    assert config.suggest("s.A.ch/CE1/LONG") == "S.a.ch/ce1/long"
    assert config.suggest("S.b.ch/ce1/shor") == "S.b.ch/ce1/long"
    assert config.suggest("S.c.ch/ce1/short") == "S.a.ch/ce1/short"
    assert config.suggest("nothing like it") is None
