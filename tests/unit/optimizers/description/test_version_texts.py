"""Versions in descriptions: a text in every language; as a number 12.10 would be 12.1."""

import json

import pytest

from cs_config import validate
from cs_config.options import keywords, relax_rules, retry_rules
from cs_config.options.operations import options_for
from optimizers.description import description, jdl, parametric
from optimizers.description.document import FIELDS, REQUIREMENTS
from optimizers.submit import checking, plan
from requirements import quantities
from requirements.assignments import parse_assignments
from requirements.errors import InvalidJob
from requirements.values import fold
from requirements.written_reals import WrittenReal, read_real, write_json

CONFIG = validate.parse("Resources: {Sites: {S: {CEs: {C: {Queues: {Q: {}}}}}}}")
OPTIONS = options_for(CONFIG, "lhcb")
#: By the table of keywords.
VERSIONS = [each.name for each in keywords.KEYWORDS if each.read is keywords.version]


def test_there_is_a_keyword_that_is_a_version():
    assert VERSIONS == ["GPURuntime"]
    assert {fold(each) for each in VERSIONS} == quantities.VERSIONS


@pytest.mark.parametrize("name", VERSIONS)
@pytest.mark.parametrize("written", ["{}=12.10", " {} = 12.10 ", '{}="12.10"'])
def test_an_assigned_version_keeps_its_digits(name: str, written: str):
    [(assigned, value)] = parse_assignments([written.format(name)]).items()

    assert (assigned, keywords.BY_NAME[name].read(value)) == (name, "12.10")
    assert parse_assignments(["CPUTime=12.10", f"{name}="]) == {"CPUTime": 12.1, name: None}


@pytest.mark.parametrize("name", VERSIONS)
@pytest.mark.parametrize("written", ["12.10", '"12.10"', "'12.10'"])
def test_so_does_that_of_a_rule(name: str, written: str):
    rules = {"Retry": f"137: {name} = {written}", "Relax": f"after 2 h: {name} = {written}"}
    [change] = retry_rules.parse_rule(rules["Retry"]).values
    assert relax_rules.parse_rule(rules["Relax"]).values == (change,)
    assert keywords.BY_NAME[name].read(change.value) == "12.10"

    read = description.parse_description({"Executable": "a", **rules}, OPTIONS)
    assert (read.retry, read.relax) == ((rules["Retry"],), (rules["Relax"],))


@pytest.mark.parametrize("name", VERSIONS)
def test_a_default_that_is_a_number_is_read_as_its_text_with_a_warning(name: str):
    """A configuration of before has such, and without it all options of the VO would be gone."""
    stated = f"Operations: {{lhcb: {{JobDescription: {{{name}: {{default: {{}}}}, MaxInputData: 7}}}}}}\n"

    config = validate.parse(stated.replace("{}}", "12.4}"))
    options = options_for(config, "lhcb").job_description
    [warning] = config.warnings
    assert str(warning).startswith(
        f"Operations/lhcb/JobDescription/{name}/default: 12.4 is a number, as which"
    )
    attribute = keywords.BY_NAME[name].attribute
    assert (options.default_values[attribute], options.max_input_data) == ("12.4", 7)
    assert options.filled_in[name] == "12.4"
    read = description.parse_description({"Executable": "a"}, options_for(config, "lhcb"))
    assert getattr(read, attribute) == "12.4"

    assert validate.parse(stated.replace("{}}", "'12.4'}")).warnings == ()


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


def test_a_stored_document_of_before_with_a_number_is_still_read():
    """Documents are stored as they were written: jobs that wait are read again after an upgrade."""
    body = {"Executable": "a", REQUIREMENTS: {"gpu": {"min_runtime_version": 12.4}}}
    assert description.parse_description(body, OPTIONS, is_accepted=True).gpu_runtime == "12.4"


def test_a_sign_that_stands_apart_leaves_a_number():
    [raw] = jdl.read_descriptions('Executable = "a"; Arguments = {- 5.10, -(2.50), -/* */1.50, +1e3, -7};')
    assert [str(each) for each in raw["Arguments"]] == ["-5.1", "-2.5", "-1.5", "1000.0", "-7"]
    assert description.parse_description(raw, OPTIONS).arguments == "-5.1 -2.5 -1.5 +1e3 -7"


def test_other_numbers_stay_numbers():
    [raw] = jdl.read_descriptions("Executable: a\nCPUTime: 12.50\nMinRAM: 10\n")
    assert raw == {"Executable": "a", "CPUTime": 12.5, "MinRAM": 10}


@pytest.mark.parametrize(
    "source",
    [
        "Executable: a\nTags: [5.10, 11, 1e3]\nJobName: 007.50\nArguments: [-5.10, 2.5]\n",
        '{"Executable": "a", "Tags": [5.10, 11, 1e3], "JobName": "007.50", "Arguments": [-5.10, 2.5]}',
        'Executable = "a"; Tags = {5.10, 11, 1e3}; JobName = "007.50"; Arguments = {"-5.10", 2.5};',
        'Executable = "a"; Tags = {5.10, 11, 1e3}; JobName = "007.50"; Arguments = {-5.10, 2.5};',
    ],
)
def test_a_number_where_a_text_stands_is_the_text_that_is_written(source: str):
    [raw] = jdl.read_descriptions(source)
    read = description.parse_description(raw, OPTIONS)
    assert (read.tags, read.job_name, read.arguments) == (("5.10", "11", "1e3"), "007.50", "-5.10 2.5")


def test_so_it_is_in_json_of_a_request_and_in_assignments():
    body = '{"Executable": "a", "Tags": [5.10, 11, 1e3], "JobName": 7.50, "Environment": {"V": 5.10}}'
    words = ["Executable=a", "Tags=[5.10, 11, 1e3]", "JobName=7.50", 'Environment={"V": 5.10}']
    set_values = parse_assignments(words)
    assert write_json(set_values) == body
    stored = json.loads(checking.record_as_text(set_values))
    for raw in (json.loads(body, parse_float=read_real), set_values, stored):
        found = description.parse_description(raw, OPTIONS)
        assert (found.tags, found.job_name, found.environment) == (
            ("5.10", "11", "1e3"),
            "7.50",
            (("V", "5.10"),),
        )


def test_a_version_as_a_number_is_not_taken_for_the_one_as_a_text():
    """Descriptions that are alike as texts are read once."""
    number, text = ({"GPURuntime": value} for value in (read_real("5.10"), "5.10"))
    assert json.loads(checking.record_as_text(number)) == {"GPURuntime": 5.1}
    assert json.loads(checking.record_as_text(text)) == {"GPURuntime": "5.10"}


def test_what_a_program_writes_for_a_number_is_that_number():
    """It computed 0.1 + 0.2, and a parameter is 0.3 as before."""
    assert [type(each) for each in json.loads("[0.30000000000000004, 5.1, 5.10]", parse_float=read_real)] == [
        float,
        float,
        WrittenReal,
    ]


def test_a_description_of_several_keeps_such_texts_on_its_way():
    """The first plan reads the file, and sends each as JSON; numbers stay where numbers stand."""
    text = "Executable: a\nTags: [5.10]\nPriority: 1.50\nParameters: [2.0, 3]\n---\nExecutable: b\n"
    planned = plan.plan_submission([plan.GivenSource(content=text)], parameters={}, count=1, is_bounded=True)
    assert [piece.job for piece in planned.pieces] == [
        {"Executable": "a", "Tags": ["5.10"], "Priority": 1.5, "Parameters": ["2.0", 3]},
        {"Executable": "b"},
    ]


def test_so_is_one_that_a_parameter_fills_in():
    [raw] = jdl.read_descriptions('Executable: a\nArguments: "%s"\nParameters: [5.10, 1e3, 2.5]\n')
    members = parametric.expand_parameters(parametric.split_description(raw), most=9)
    assert [each["s"] for each in members] == ["5.10", "1e3", "2.5"]


@pytest.mark.parametrize(
    ("stated", "warned"),
    [
        ("Tags: {default: [5.10, 11]}", True),
        ("Tag: {default: 5.10}", True),
        ("Platform: {default: 5.10}", True),
        ("Tags: {default: ['5.10', 11]}", False),
        ("Priority: {default: 1.5}", False),
        ("WholeNode: {default: true}", False),
    ],
)
def test_a_default_text_that_is_a_number_is_warned_of(stated: str, warned: bool):
    config = validate.parse(f"Operations: {{lhcb: {{JobDescription: {{{stated}}}}}}}\n")
    found = [str(each) for each in config.warnings if "write versions in quotes" in each.message]
    assert len(found) == warned
    assert all(each.startswith("Operations/lhcb/JobDescription/") for each in found)
