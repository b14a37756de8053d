"""Importers are found by entry points, and propose changes in one form."""

import pytest
import yaml

from cs_config import validate
from cs_config.errors import ConfigError
from cs_config.formats import dirac_text, importers
from cs_config.formats.importers import merge_trees
from cs_config.tree import parameters
from cs_config.versions.store import NOTHING

TEXTS = {
    "classad": '[ id = "ce1/q"; info = [ MaxRAM = 4000; ] ]',
    "cric": '{"q": {"maxrss": 4000, "vo_name": "a", "queues": [{"ce_endpoint": "ce1:9619"}]}}',
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


_OF_A = '<attrs><attr name="GLIDEIN_Site" value="A"/></attrs>'
#: Files of each format with an open queue, and what says so in them.
OPEN = [
    ("classad", TEXTS["classad"].replace("; ]", '; GlueCEStateStatus = "Production"; ]')),
    ("cric", TEXTS["cric"].replace('"vo_name"', '"status": "online", "vo_name"')),
    ("dirac", TEXTS["dirac"].replace("MaxRAM", "Status = Active\nMaxRAM")),
    ("glue2", f"{TEXTS['glue2']}GLUE2ComputingShareServingState: production\n"),
    ("osg", "A: {ce1: {q: {enabled: true, attrs: {GLIDEIN_Supported_VOs: a}}}}"),
    ("osg", f'<glidein><entry name="q" enabled="True" gatekeeper="ce1">{_OF_A}</entry></glidein>'),
]


@pytest.mark.parametrize(("name", "text"), OPEN)
def test_an_import_again_leaves_a_queue_closed_that_was_drained_by_hand(name: str, text: str) -> None:
    propose = importers.load_importer(name)
    site = None if name in ("dirac", "osg") else "A"
    first = propose(NOTHING, {"file": text}, site=site).proposal.after
    [queue] = first.addresses
    assert "Enabled" not in first.values(queue, "")
    edited = merge_trees(first.tree, _section_at(queue.path, {"Enabled": False}))
    drained = validate.parse(yaml.safe_dump(edited))
    again = propose(drained, {"file": text}, site=site)
    assert again.proposal.differences == ()
    notes = [each for each in again.notes if "stays false" in each.message]
    assert [each.path for each in notes] == ([f"{queue.path}/Enabled"] if name in ("cric", "osg") else [])


def _section_at(path: str, values: dict[str, object]) -> dict[str, object]:
    tree = values
    for name in reversed(path.split("/")):
        tree = {name: tree}
    return tree


def test_a_file_with_our_own_option_opens_a_queue() -> None:
    text = TEXTS["dirac"].replace("MaxRAM", "Enabled = True\nMaxRAM")
    drained = validate.parse("Resources: {Sites: {A: {CEs: {ce1: {Queues: {q: {Enabled: false}}}}}}}")
    found = importers.load_importer("dirac")(drained, {"file": text}).proposal.after
    assert found.values(found.addresses[0], "")["Enabled"] is True


@pytest.mark.parametrize("version", ["9.10", "9.4", 9, 9.4, ["9.10", 9.4]])
def test_versions_are_exported_as_what_an_import_reads(version: object) -> None:
    written = dirac_text.write_value("OSVersion", version)  # type: ignore[arg-type]
    assert written is not None
    text = ", ".join(written) if isinstance(written, list) else written
    assert dirac_text.read_value("OSVersion", text) == parameters.as_version(version)


@pytest.mark.parametrize(("name", "words"), [("dirac", "one file"), ("osg", "imported alone")])
def test_a_format_of_one_file_refuses_two(name: str, words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        importers.load_importer(name)(NOTHING, {"a": TEXTS[name], "b": TEXTS[name]})


#: A version of each format as its programs and people write it, with the name and value in the tree.
VERSIONS = [
    *(
        ("classad", f'[ id = "ce1/q"; Site = "A"; info = [ OSVersion = {written}; ] ]', "OSVersion", kept)
        for written, kept in (
            ("9.10", "9.10"),
            ("9.4", "9.4"),
            ("9", 9),
            ('"9.10"', "9.10"),
            ("9.400000000000000E+00", "9.4"),
            ("{ 9.10, 9.4 }", ("9.10", "9.4")),
        )
    ),
    *(
        (
            "dirac",
            TEXTS["dirac"].replace("MaxRAM = 4000", f"KernelRelease = {written}"),
            "KernelRelease",
            kept,
        )
        for written, kept in (("9.10", "9.10"), ("9.4", "9.4"), ("9", 9), ("9.10, 9.4", ("9.10", "9.4")))
    ),
    *(
        (
            "glue2",
            f"""{TEXTS["glue2"]}GLUE2ComputingShareExecutionEnvironmentForeignKey: e

dn: GLUE2ResourceID=e,GLUE2ServiceID=c,GLUE2DomainID=A,o=glue
objectClass: GLUE2ExecutionEnvironment
GLUE2ResourceID: e
GLUE2ExecutionEnvironmentOSVersion: {written}
""",
            "OSVersion",
            written,
        )
        for written in ("9.10", "9.4", "9", "9.10.1")
    ),
    *(
        ("osg", TEXTS["osg"].replace("MaxRAM: 4000", f"OSVersion: {written}"), "OSVersion", kept)
        for written, kept in (("9.10", "9.10"), ("9.4", "9.4"), ("9", 9), ("[9.10, 9.4]", ("9.10", "9.4")))
    ),
    *(
        (
            "osg",
            f"A:\n  ce1:\n    q:\n      attrs: {{GLIDEIN_REQUIRED_OS: {{value: {written}}}}}\n",
            "OS",
            kept,
        )
        for written, kept in (("9.10", ("9.10",)), ("[9.10, rhel8]", ("9.10", "rhel8")))
    ),
    (
        "osg",
        """<glidein><entries><entry name="q" gatekeeper="ce1"><attrs>
        <attr name="GLIDEIN_Site" value="A"/><attr name="GLIDEIN_REQUIRED_OS" value="9.10"/>
        </attrs></entry></entries></glidein>""",
        "OS",
        ("9.10",),
    ),
]


@pytest.mark.parametrize(("kind", "text", "name", "kept"), VERSIONS)
def test_versions_stay_texts_in_every_format(kind: str, text: str, name: str, kept: object) -> None:
    propose = importers.load_importer(kind)
    found = propose(NOTHING, {"file": text}, site="A" if kind == "glue2" else None)
    [queue] = found.proposal.after.addresses
    assert found.proposal.after.values(queue, "")[name] == kept
    assert not [each for each in found.proposal.after.warnings if "quotes" in each.message]


@pytest.mark.parametrize("name", ["CUDA", "Root", "Driver", "Compiler"])
def test_numbers_of_software_stay_numbers_in_texts_of_dirac(name: str) -> None:
    """Jobs compare with them; as texts they would run elsewhere after the next import."""
    text = TEXTS["dirac"].replace("MaxRAM = 4000", f"{name} = 11.8\nGPURuntime = 12.10")
    found = importers.load_importer("dirac")(NOTHING, {"file": text}, site=None)
    [queue] = found.proposal.after.addresses
    values = found.proposal.after.values(queue, "")
    assert (values[name], values["GPURuntime"]) == (11.8, "12.10")
    assert dirac_text.write_value(name, 11.8) == "11.8"
    [warning] = [each for each in found.proposal.after.warnings if "quotes" in each.message]
    assert warning.path.endswith(f"/{name}")


def test_an_unknown_format_names_those_that_are_installed() -> None:
    with pytest.raises(ValueError, match="only classad, cric, dirac, glue2, osg"):
        importers.load_importer("vulgar")
