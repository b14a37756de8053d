"""Versions in descriptions: a text in every language; as a number 12.10 would be 12.1."""

import pytest

from cs_config import validate
from cs_config.options import keywords
from cs_config.options.operations import options_for
from optimizers.description import description, jdl
from optimizers.description.document import FIELDS, REQUIREMENTS
from requirements.errors import InvalidJob

CONFIG = validate.parse("Resources: {Sites: {S: {CEs: {C: {Queues: {Q: {}}}}}}}")
OPTIONS = options_for(CONFIG, "lhcb")
#: By the table of keywords.
VERSIONS = [each.name for each in keywords.KEYWORDS if each.read is keywords.version]


def test_there_is_a_keyword_that_is_a_version():
    assert VERSIONS == ["GPURuntime"]


@pytest.mark.parametrize("name", VERSIONS)
@pytest.mark.parametrize(
    "form",
    [
        'Executable = "a"; {} = 12.10;',
        '[{}=12.10;Executable="a"]',
        '{} = 12.10 ; // of CUDA\nExecutable = "a";',
        "Executable = a\n{} = 12.10\n",
        "Executable: a\n{}: 12.10\n",
        '{{"Executable": "a", "{}": 12.10}}',
        "- {{Executable: a, {}: '12.10'}}",
    ],
)
def test_a_version_keeps_its_digits_in_each_language(name: str, form: str):
    [raw] = jdl.read_descriptions(form.format(name))

    assert raw[name] == "12.10"
    assert keywords.BY_NAME[name].read(raw[name]) == "12.10"


@pytest.mark.parametrize("path", [path for path, name in FIELDS.items() if name in VERSIONS])
def test_so_does_that_of_a_document(path: str):
    *sections, field = path.split("/")
    text = "".join(f"{{{name}: " for name in (*sections, field)) + "12.10" + "}" * (len(sections) + 1)

    [raw] = jdl.read_descriptions(f"Executable: a\n{REQUIREMENTS}: {text}\n")

    value: object = raw[REQUIREMENTS]
    for name in (*sections, field):
        assert isinstance(value, dict)
        value = value[name]
    assert value == "12.10"


@pytest.mark.parametrize("name", VERSIONS)
def test_a_number_without_its_text_is_refused_with_what_to_write(name: str):
    with pytest.raises(
        InvalidJob, match=r"12\.1 is a number, as which 9\.10 is 9\.1; write versions in quotes"
    ):
        description.parse_description({"Executable": "a", name: 12.10}, OPTIONS)
    assert [keywords.BY_NAME[name].read(right) for right in ("12.10", 12)] == ["12.10", "12"]


def test_other_numbers_stay_numbers():
    [raw] = jdl.read_descriptions("Executable: a\nCPUTime: 12.50\nMinRAM: 10\n")
    assert raw == {"Executable": "a", "CPUTime": 12.5, "MinRAM": 10}
