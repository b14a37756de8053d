"""Importers are found by entry points, and propose changes in one form."""

import pytest

from cs_config.errors import ConfigError
from cs_config.formats import importers
from cs_config.versions.store import NOTHING

TEXTS = {
    "classad": '[ id = "ce1/q"; info = [ MaxRAM = 4000; ] ]',
    "dirac": "Resources { Sites { LCG { A { CEs { ce1 { Queues { q {\nMaxRAM = 4000\n} } } } } } } }\n",
    "glue2": """dn: GLUE2ShareID=s,GLUE2ServiceID=c,GLUE2DomainID=A,o=glue
objectClass: GLUE2ComputingShare
GLUE2ShareID: s
GLUE2ShareServiceForeignKey: ce1.A_ComputingElement
GLUE2ComputingShareMappingQueue: q
GLUE2ComputingShareMaxMainMemory: 4000
""",
    "osg": "Resources:\n  Sites: {A: {CEs: {ce1: {Queues: {q: {MaxRAM: 4000}}}}}}\n",
}


def test_our_formats_are_found_like_anybodys() -> None:
    assert set(importers.installed_formats()) >= TEXTS.keys()


@pytest.mark.parametrize("name", TEXTS)
def test_every_importer_merges_a_tree(name: str) -> None:
    propose = importers.load_importer(name)
    found = propose(NOTHING, {"file": TEXTS[name]}, site=None if name in ("dirac", "osg") else "A")
    [queue] = found.proposal.after.addresses
    assert str(queue) == ("A/ce1.a/q" if name == "glue2" else "A/ce1/q")
    assert found.proposal.after.values(queue, "")["MaxRAM"] == 4000


@pytest.mark.parametrize("name", ["dirac", "osg"])
def test_a_format_of_one_file_refuses_two(name: str) -> None:
    with pytest.raises(ConfigError, match="one file"):
        importers.load_importer(name)(NOTHING, {"a": TEXTS[name], "b": TEXTS[name]})


def test_an_unknown_format_names_those_that_are_installed() -> None:
    with pytest.raises(ValueError, match="only classad, dirac, glue2, osg"):
        importers.load_importer("vulgar")
