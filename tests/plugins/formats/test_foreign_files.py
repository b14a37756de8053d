"""Files as other systems publish them: each is imported, and nothing in it goes without a word.

Every key of a file is taken out in turn: then the configuration is another, or the notes are. The files in
tests/data/foreign have the forms of public ones, with invented names.
"""

import json
import re
from collections.abc import Callable, Iterator, Mapping
from copy import deepcopy
from functools import partial
from pathlib import Path
from typing import Any
from xml.etree import ElementTree as Xml

import pytest
import yaml

from cs_config.formats.importers import Importer
from cs_config.versions.store import NOTHING
from pilotage.plugins.formats import ce_ads_import, cric, dirac_import, glidein_factory, glue2
from tests.conftest import ROOT
from tests.support.commands import Run, run

__all__ = ["run"]

FILES = ROOT / "tests/data/foreign"

Result = tuple[str, tuple[str, ...]]
Variants = Iterator[tuple[str, str]]


def imported(importer: Importer, file: str, text: str) -> Result:
    """The configuration, and the notes without their lines."""
    found = importer(NOTHING, {file: text})
    return found.proposal.after.source, tuple(f"{each.path}: {each.message}" for each in found.notes)


def without_lines(text: str, is_key: Callable[[str], object]) -> Variants:
    lines = text.splitlines(keepends=True)
    for number, line in enumerate(lines):
        if is_key(line):
            following = number + 1
            while following < len(lines) and lines[following].startswith(" ") and not line.startswith(" "):
                following += 1  # continuation lines of LDIF
            yield line.strip(), "".join([*lines[:number], *lines[following:]])


def ldif_variants(text: str) -> Variants:
    # Without its name an entry is another; classes and versions say of what form it is.
    return without_lines(text, lambda line: re.match(r"(?!dn|objectClass|version)\w+:", line))


def ad_variants(text: str) -> Variants:
    """The attributes, each of which has a line."""
    return without_lines(text, re.compile(r"\s+(?!id\b|info\b)\w+ = .*;$").match)


def cfg_variants(text: str) -> Variants:
    """The options by their paths."""
    lines, names, last = text.splitlines(), list[str](), ""
    for number, line in enumerate(lines):
        name, sign, _ = map(str.strip, line.partition(" = "))
        if name == "{":
            names.append(last)
        elif name == "}":
            names.pop()
        elif sign and not line.startswith("#"):
            yield "/".join([*names, name]), "\n".join([*lines[:number], *lines[number + 1 :]])
        last = name


def xml_variants(text: str) -> Variants:
    """Each attribute of an element; those that name a key and its value go together."""
    whole = Xml.fromstring(text)  # noqa: S314  (a file of ours)
    for number, element in enumerate(whole.iter()):
        is_key = element.tag in ("attr", "submit_attr")
        for name in (each for each in element.attrib if not is_key or each != "value"):
            root = deepcopy(whole)
            there = list(root.iter())[number]
            for each in ("name", "value") if is_key and name == "name" else (name,):
                del there.attrib[each]
            yield f"{element.tag} {element.get('name', '')} {name}", Xml.tostring(root, encoding="unicode")


def yaml_variants(text: str) -> Variants:
    tree = yaml.safe_load(text)
    for leaf in list(leaf_paths(tree)):
        path = leaf[:-1] if leaf[-1] == "value" else leaf
        changed = deepcopy(tree)
        section: Any = changed
        for name in path[:-1]:
            section = section[name]
        del section[path[-1]]
        yield "/".join(path), yaml.safe_dump(changed)


def json_variants(text: str) -> Variants:
    """The fields of queues and of their compute elements, whose endpoints name them."""
    whole = json.loads(text)
    for name, queue in whole.items():
        for field, value in queue.items():
            if field not in ("queues", "name") and value not in (None, ""):
                changed = {**whole, name: {each: below for each, below in queue.items() if each != field}}
                yield f"{name} {field}", json.dumps(changed)
        for number, element in enumerate(queue.get("queues", ())):
            for field in (each for each in element if each != "ce_endpoint" and element[each] != ""):
                changed = deepcopy(whole)
                del changed[name]["queues"][number][field]
                yield f"{name} {number} {field}", json.dumps(changed)


def leaf_paths(section: Mapping[str, Any]) -> Iterator[tuple[str, ...]]:
    for name, below in section.items():
        if isinstance(below, dict):
            yield from ((name, *rest) for rest in leaf_paths(below))
        else:
            yield (name,)


IMPORTS: Mapping[str, tuple[Importer, Callable[[str], Variants]]] = {
    "bdii_htcondorce.ldif": (glue2.propose_glue2, ldif_variants),
    "bdii_arc.ldif": (glue2.propose_glue2, ldif_variants),
    "ce_lcg.ad": (partial(ce_ads_import.propose_ads, site="LCG.Example.org"), ad_variants),
    "factory_sections.yml": (glidein_factory.propose_factory, yaml_variants),
    "factory_flat.yml": (glidein_factory.propose_factory, yaml_variants),
    "factory_gpus.xml": (glidein_factory.propose_factory, xml_variants),
    "factory_whole_nodes.xml": (glidein_factory.propose_factory, xml_variants),
    "cric_queues.json": (cric.propose_cric, json_variants),
    "dirac_vo.cfg": (dirac_import.propose_dirac, cfg_variants),
    "dirac_rfc5.cfg": (dirac_import.propose_dirac, cfg_variants),
}
#: What a file states twice, or as it would be anyway.
SAID_TWICE: Mapping[str, frozenset[str]] = {
    "cric_queues.json": frozenset(
        {
            # Open, and no virtual queue.
            *(f"EXAMPLE {name}" for name in ("state", "site_state", "rc_site_state", "status", "is_virtual")),
            *(f"EXAMPLE 0 {name}" for name in ("ce_state", "ce_status", "ce_queue_status")),
            *("EXAMPLE_TEST state", "EXAMPLE_VIRTUAL state"),
        }
    ),
    "factory_flat.yml": frozenset(
        {
            "US_Example_T2/cmsce1.example.edu/CMS_T2_US_Example_ce1/gridtype",  # the usual one
            "US_Example_T2/cmsce1.example.edu/CMS_T2_US_Example_ce1/attrs/GLIDEIN_CPUS",
            "US_Example_T2/cmsce1.example.edu/CMS_T2_US_Example_ce1/submit_attrs/+xcount",
            "US_Example_T2/cmsce1.example.edu/CMS_T2_US_Example_ce1/submit_attrs/+maxMemory",
            "US_Example_T2/cmsce1.example.edu/CMS_T2_US_Example_closed/enabled",  # it is in a downtime
        }
    ),
    "factory_gpus.xml": frozenset({"entry GPU_A enabled"}),
    "factory_whole_nodes.xml": frozenset({"entry WholeNode_A enabled", "entry WholeNode_B enabled"}),
}


def test_every_file_is_here() -> None:
    assert sorted(IMPORTS) == sorted(each.name for each in FILES.iterdir())


@pytest.mark.parametrize("file", IMPORTS)
def test_no_key_of_a_file_goes_without_a_word(file: str) -> None:
    importer, list_variants = IMPORTS[file]
    text = (FILES / file).read_text()
    tree, notes = imported(importer, file, text)
    #: Sections that a note names as a whole.
    sections = tuple(f"{each.partition(': ')[0]}/" for each in notes)
    without_effect = {
        name
        for name, changed in list_variants(text)
        if not name.startswith(sections) and imported(importer, file, changed) == (tree, notes)
    }
    assert without_effect == SAID_TWICE.get(file, frozenset())


@pytest.mark.parametrize("file", IMPORTS)
def test_a_file_of_windows_is_read_as_the_same(run: Run, tmp_path: Path, file: str) -> None:
    tree, name = tmp_path / "resources.yaml", file.partition("_")[0]
    tree.write_text("Resources: {}\n")
    command = {"bdii": "glue2", "factory": "osg", "dirac": "dirac", "ce": "classad"}.get(name, name)
    site = ("--site", "LCG.Example.org") if command == "classad" else ()
    text = (FILES / file).read_text()
    shown = []
    for number, content in enumerate((text, "\ufeff" + text.replace("\n", "\r\n"))):
        there = tmp_path / str(number) / file
        there.parent.mkdir()
        there.write_bytes(content.encode())
        status, out, err = run("config", "import", command, there, *site, "--file", tree, "--yaml")
        shown.append((status, out, err.replace(str(there), file)))
    assert shown[0][0] == 0
    assert shown[1] == shown[0]


UNKNOWN = "Xyzzy"


def ldif_additions(text: str) -> Variants:
    for position in (each.end() for each in re.finditer(r"^dn:.*\n(?: .*\n)*", text, re.MULTILINE)):
        yield "", f"{text[:position]}{UNKNOWN}: 1\n{text[position:]}"


def cfg_additions(text: str) -> Variants:
    lines, names, last = text.splitlines(), list[str](), ""
    for number, line in enumerate(lines):
        last, before = line.strip(), last
        if last == "{":
            names.append(before)
            for added in (f"{UNKNOWN} = 1", f"{UNKNOWN}\n{{\n {UNKNOWN} = 1\n}}"):
                yield "/".join(names), "\n".join([*lines[: number + 1], added, *lines[number + 1 :]])
        elif last == "}":
            names.pop()


def xml_additions(text: str) -> Variants:
    """An attribute of each element; an element with a text, or with an attribute, in each."""
    whole = Xml.fromstring(text)  # noqa: S314  (a file of ours)
    for number, element in enumerate(whole.iter()):
        for kind in range(3):
            root = deepcopy(whole)
            there = list(root.iter())[number]
            if kind == 0:
                there.set(UNKNOWN, "1")
            else:
                below = Xml.SubElement(there, UNKNOWN, {} if kind == 1 else {"a": "1"})
                below.text = "1"
            yield element.tag, Xml.tostring(root, encoding="unicode")


def tree_additions(tree: Any) -> Iterator[tuple[str, Any]]:
    """Copies of a tree, each with a value or a section more in one of its sections, or in a list of them."""

    def list_places(below: Any, path: tuple[Any, ...]) -> Iterator[tuple[Any, ...]]:
        inner = below.items() if isinstance(below, dict) else enumerate(below)
        yield path
        for name, each in inner:
            if isinstance(each, dict) or (isinstance(each, list) and any(isinstance(i, dict) for i in each)):
                yield from list_places(each, (*path, name))

    for path in list_places(tree, ()):
        for added in (1, {"a": 1}):
            changed = deepcopy(tree)
            there = changed
            for name in path:
                there = there[name]
            if isinstance(there, dict):
                there[UNKNOWN] = added
            elif added == 1:
                there.append(UNKNOWN)
            else:
                continue
            yield "/".join(map(str, path)), changed


def yaml_additions(text: str) -> Variants:
    return ((what, yaml.safe_dump(tree)) for what, tree in tree_additions(yaml.safe_load(text)))


def json_additions(text: str) -> Variants:
    return ((what, json.dumps(tree)) for what, tree in tree_additions(json.loads(text)))


ADDITIONS: Mapping[Callable[[str], Variants], Callable[[str], Variants]] = {
    ldif_variants: ldif_additions,
    cfg_variants: cfg_additions,
    xml_variants: xml_additions,
    yaml_variants: yaml_additions,
    json_variants: json_additions,
}


@pytest.mark.parametrize("file", [file for file, each in IMPORTS.items() if each[1] in ADDITIONS])
def test_an_unknown_key_is_noted_at_every_level_of_a_file(file: str) -> None:
    """Or kept, as queues have parameters of any name; or a section around it is noted as a whole."""
    importer, list_variants = IMPORTS[file]
    variants = list(ADDITIONS[list_variants]((FILES / file).read_text()))
    unnoted = []
    for place, changed in variants:
        source, notes = imported(importer, file, changed)
        left_out = (each.partition(": not carried over")[0] for each in notes if "not carried over" in each)
        around = {re.split("[/ ]", each)[-1] for each in left_out}.intersection(place.split("/"))
        if not any(UNKNOWN in each for each in (source, *notes)) and not around:
            unnoted.append(place)
    assert (unnoted, bool(variants)) == ([], True)
