import re
from fractions import Fraction
from pathlib import Path

import pytest

from requirements.errors import InvalidInput
from requirements.nodes.lrms_vocabulary import VOCABULARIES
from requirements.nodes.site_mapping import parse_mapping


def mapped(vocabulary: str, **attributes: object) -> dict[str, object]:
    return {"Vocabulary": vocabulary, "Attributes": attributes}


def test_attributes_are_found_in_any_case_with_their_words_and_units() -> None:
    mapping = parse_mapping(
        mapped(
            "Slurm",
            RAM={"min": "mem", "unit": "GB"},
            CPU={"min": "time", "unit": "s"},
            GPU={"min": "gpu"},
            Model={"features": {"P4": "p4", 3: "three"}, "feature": "any"},
        )
    )
    ram, cpu, model = mapping.find("ram"), mapping.find("CPU"), mapping.find("MODEL")
    assert ram is not None
    assert (ram.minimum, ram.factor("mem")) == ("mem", 1024)
    assert cpu is not None
    assert cpu.factor("time") == Fraction(1, 60)
    assert model is not None
    assert [model.feature(value) for value in ("p4", 3.0, True, 1, "P5")] == [
        "p4",
        "three",
        "any",
        None,
        None,
    ]
    assert mapping.find("Other") is None


def test_a_word_of_the_site_may_be_in_a_unit_of_its_own() -> None:
    mapping = parse_mapping(mapped("GridEngine", Disk={"min": "scratch", "unit": "MB", "in": "GB"}))
    disk = mapping.find("Disk")
    assert disk is not None
    assert disk.factor("scratch") == Fraction(1, 1024)


@pytest.mark.parametrize(
    ("raw", "message"),
    [
        ("Slurm", "F: 'Slurm', allowed are Vocabulary, Attributes"),
        ({"Vocabulary": "Slrum"}, "F/Vocabulary: 'Slrum' is not a vocabulary, allowed are Slurm, GridEngine"),
        ({"Vocabulary": "Slrum"}, "did you mean Slurm?"),
        ({"Vocabulary": ["Slurm"]}, "is not a vocabulary"),
        ({"Vocabulary": {}}, "F/Vocabulary/Forms: allowed is {min: [arguments], feature: …}"),
        ({"Vocabulary": {"Forms": {"least": ["-l"]}}}, "F/Vocabulary/Forms/least: unknown, allowed are min"),
        ({"Vocabulary": {"Forms": {"min": ["-l"]}}}, "needs {value} and {word}, and no other braces"),
        (
            {"Vocabulary": {"Forms": {"feature": ["{word}", "{word.__class__}"]}}},
            "needs {word}, and no other braces",
        ),
        ({"Vocabulary": {"Forms": {"feature": ["-f\n{word}"]}}}, "printable"),
        ({"Vocabulary": {"Forms": {"feature": ["{word}"]}, "Units": {"mem": "MiB"}}}, "'MiB', allowed are B"),
        (
            {"Vocabulary": {"Forms": {"feature": ["{word}"]}, "Word": "x"}},
            "unknown, allowed are Forms, Units",
        ),
        ({"Vocabulary": "Slurm", "Attribute": {}}, "F/Attribute: unknown"),
        ({"Vocabulary": "Slurm", "Attributes": []}, "F/Attributes: allowed is {Name: {…}}"),
        (mapped("Slurm", RAM={}), "F/Attributes/RAM: is empty"),
        (mapped("Slurm", RAM="mem"), "F/Attributes/RAM: 'mem', allowed are min"),
        (mapped("Slurm", RAM={"minimum": "mem"}), "RAM/minimum: unknown, allowed are min"),
        (mapped("Slurm", RAM={"max": "mem"}), "RAM/max: Slurm does not support max of mem"),
        (mapped("Slurm", Model={"equal": "model"}), "Model/equal: Slurm does not support equal of model"),
        (mapped("PBS", Model={"equal": "model"}), "PBS does not support equal of model"),
        (mapped("Slurm", RAM={"min": "mem --wrap=id"}), "RAM/min: 'mem --wrap=id' is not a word"),
        (mapped("Slurm", RAM={"min": "-mem"}), "is not a word"),
        (mapped("Slurm", RAM={"min": 3}), "RAM/min: 3 is not a word"),
        (mapped("Slurm", Model={"features": {"P4": "p4&gpu"}}), "Model/features: 'p4&gpu' cannot be written"),
        (mapped("Slurm", Model={"features": {None: "none"}}), "None is not a value of a node"),
        (mapped("Slurm", Model={"features": ["P4"]}), "allowed is {value: text}"),
        (mapped("LSF", Model={"equal": "model", "values": {"P4": "p 4"}}), "'p 4' cannot be written"),
        (mapped("Slurm", RAM={"min": "mem", "unit": "min"}), "RAM/unit: 'min' cannot be converted to 'MB'"),
        (mapped("Slurm", RAM={"min": "mem", "in": "GB"}), "RAM/in: 'GB', but mem is in MB"),
        (mapped("Slurm", GPU={"min": "gpu", "unit": "MB"}), "GPU/unit: the unit of gpu is not known"),
        (
            mapped("Slurm", RAM={"min": "mem"}, Memory={"min": "mem"}),
            "F/Attributes/Memory/min: mem is already used by RAM",
        ),
        (mapped("Slurm", RAM={"min": "mem"}, ram={"min": "tmp"}), "ram: named twice, the other time as RAM"),
    ],
)
def test_what_is_no_mapping_is_refused_with_its_place(raw: object, message: str) -> None:
    with pytest.raises(InvalidInput) as error:
        parse_mapping(raw, "F")
    assert message in str(error.value)


def test_every_problem_of_a_mapping_is_named_at_once() -> None:
    with pytest.raises(InvalidInput) as error:
        parse_mapping(mapped("Slurm", RAM={"max": "mem"}, Model={"equal": "x"}, GPU={"min": "gpu"}))
    assert len(error.value.problems) == 2


@pytest.mark.parametrize("name", VOCABULARIES)
def test_every_word_of_a_vocabulary_can_be_mapped(name: str) -> None:
    words = VOCABULARIES[name].words
    mapping = parse_mapping(
        mapped(name, **{f"A{number}": {"min": word} for number, word in enumerate(words)})
    )
    assert [meaning.minimum for meaning in mapping.meanings] == list(words)


DOCUMENTED = Path(__file__).parents[4] / "docs" / "site-admin" / "vocabularies.md"


@pytest.mark.parametrize("name", [name for name, each in VOCABULARIES.items() if each.words])
def test_every_word_is_documented_with_its_unit(name: str) -> None:
    table = DOCUMENTED.read_text().partition("| vocabulary | words |")[2]
    (line,) = (each for each in table.splitlines() if each.startswith(f"| `{name}` |"))
    documented = {
        word: unit or None
        for words, unit in re.findall(r"`([A-Za-z_ ]+)`(?: \((\w+)\))?", line.partition("` |")[2])
        for word in words.split()
    }
    assert documented == {word: known.unit for word, known in VOCABULARIES[name].words.items()}
