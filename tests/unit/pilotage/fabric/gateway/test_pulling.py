"""Names of requests in the journal of a gateway."""

from contextlib import closing
from pathlib import Path

from pilotage.fabric.manager.journal import Journal


def test_a_request_keeps_its_name_over_a_restart_until_it_is_done(tmp_path: Path) -> None:
    with closing(Journal(tmp_path)) as journal:
        name = journal.open_request("cms A/b/c")
        assert journal.open_request("dune A/b/c") != name, "another question"
    with closing(Journal(tmp_path)) as journal:
        assert journal.open_request("cms A/b/c") == name
        journal.close_request("cms A/b/c")
        assert journal.requests.keys() == {"dune A/b/c"}
        assert journal.open_request("cms A/b/c") != name
