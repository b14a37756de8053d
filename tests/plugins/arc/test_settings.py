"""CEs of ARC in the file of a director."""

from pathlib import Path
from typing import Any

import pytest

from pilotage.fabric.director import configuration
from pilotage.fabric.director.configuration import InvalidDirector
from pilotage.plugins.arc.arc import ArcSettings
from tests.unit.pilotage.fabric.director import test_tree_queues as tree_queues
from tests.unit.pilotage.fabric.director.test_configuration import said

ARC = {"kind": "arc", "ce": {"url": "https://{endpoint}/arex", "token_file": "/etc/pilotage/ce.token"}}


def ce(**more: Any) -> dict[str, Any]:
    return {"systems": {"ce": {"kind": "arc", "ce": {"url": "https://ce.example.org/arex", **more}}}}


def test_a_ce_is_known_by_its_address_and_by_what_it_believes() -> None:
    systems = ce(certificate="/proxy", authorities="/etc/grid-security/certificates")["systems"]
    queues = [{"queue": "LCG.A.org/ce1/long", "system": "ce"}]

    system = configuration.read_file(said(systems=systems, queues=queues), "d.yaml").systems["ce"]

    assert isinstance(system, ArcSettings)
    assert system.ce.certificate == Path("/proxy")
    assert system.job_directory is None


@pytest.mark.parametrize(
    ("more", "message"),
    [
        (
            ce(url="http://ce.example.org/arex", token_file="/t"),
            "systems/ce/ce/url: 'http://ce.example.org/arex' is not allowed, allowed is a text",
        ),
        (ce(), "systems/ce/ce: a CE needs a token_file, or a certificate with its key"),
        (ce(token_file="/t", key="/k"), "there is a key without its certificate"),
        (ce(token_fiel="/t"), "unknown setting, did you mean token_file?"),
        ({"systems": {"ce": {"kind": "arc", "directory": "/a"}}}, "systems/ce/ce: is needed"),
    ],
)
def test_what_is_wrong_is_told_with_its_place(more: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidDirector) as refused:
        configuration.read_file(said(**more), "d.yaml")
    assert message in str(refused.value)


def test_a_ce_of_the_tree_gets_a_system_of_its_type_with_its_endpoint() -> None:
    told = tree_queues.read({"site": "LCG.B.ch"}, {"arex": ARC})
    made = configuration.add_tree_queues(told, tree_queues.GRID, "director.yaml")
    assert [(each.queue, each.system, each.batch_queue, each.flags) for each in made.queues] == [
        ("LCG.B.ch/arc.b.ch/long", "arc.b.ch", None, ("ENV/PROXY", "ENV/GPU 1"))
    ]
    arc = made.systems["arc.b.ch"]
    assert isinstance(arc, ArcSettings)
    assert arc.ce.url == "https://arc.b.ch/arex"


def test_pilots_hide_the_certificate_of_their_director_but_not_the_authorities_beside_it() -> None:
    systems = ce(certificate="/etc/grid-security/cert.pem")["systems"]
    queues = [{"queue": "LCG.A.org/ce1/long", "system": "ce"}]
    told = configuration.read_file(said(systems=systems, queues=queues), "d.yaml")
    assert "--hide=/etc/grid-security/cert.pem" in configuration.isolation_words(told)
