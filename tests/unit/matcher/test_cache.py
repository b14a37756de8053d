"""Where pilots stand, remembered for one configuration."""

from matcher.cache import LocationCache, PilotLocation
from matcher.request.resource import Resource
from tests import waiting


def _stand() -> PilotLocation:
    return PilotLocation(address=waiting.LONG, resource=Resource(cpu_time=1.0), facts={})


def test_another_configuration_is_another_beginning() -> None:
    first, second, stands, stand = waiting.grid(), waiting.grid(version=2), LocationCache(), _stand()
    stands.note("same", stand, first)
    assert stands.find("same", first) is stand
    assert stands.find("same", second) is None
    stands.note("other", _stand(), second)
    assert stands.find("same", second) is None
    assert stands.find("same", first) is None


def test_who_is_not_remembered_changes_nothing_for_others() -> None:
    first, second, stands, stand = waiting.grid(), waiting.grid(version=2), LocationCache(), _stand()
    stands.note("same", stand, first)
    stands.note(None, _stand(), second)  # a director's question, in a thread that is ahead
    assert stands.find(None, second) is None
    assert stands.find("same", first) is stand
