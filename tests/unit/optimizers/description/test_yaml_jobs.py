import pytest

from optimizers.description import jdl
from requirements.errors import InvalidInput, InvalidJob


def refusal(text: str) -> InvalidInput:
    with pytest.raises(InvalidInput) as caught:
        jdl.read_descriptions(text, "job.yaml")
    return caught.value


def test_yaml_has_the_same_names() -> None:
    text = "Executable: a.sh\nRequirements: {SoftwareTag: [AppVersion1, AppVersion2], Memory: 4000}\n"
    assert jdl.read_descriptions(text) == (
        {
            "Executable": "a.sh",
            "Requirements": {"SoftwareTag": ["AppVersion1", "AppVersion2"], "Memory": 4000},
        },
    )


def test_json_is_yaml() -> None:
    assert jdl.read_descriptions('{"Executable": "a", "CPUTime": 5}') == ({"Executable": "a", "CPUTime": 5},)


def test_a_list_and_several_documents_are_several_jobs() -> None:
    assert jdl.read_descriptions("- {Executable: a}\n- {Executable: b}\n---\nExecutable: c\n") == (
        {"Executable": "a"},
        {"Executable": "b"},
        {"Executable": "c"},
    )


@pytest.mark.parametrize("number", ["0x10", "010", "99999999999999999999", ".nan", ".inf", "1_000"])
def test_numbers_that_mean_something_else_elsewhere_are_refused(number: str) -> None:
    problem = refusal(f"Executable: a\nCPUTime: {number}").problems[0]
    assert (problem.line, problem.column) == (2, 10)


@pytest.mark.parametrize(
    ("text", "line", "column"),
    [
        ("Executable: a\nSite: [x\nTag: y\n", 3, 4),
        ("Executable: a\nexecutable: b\n", 2, 1),
        ("a: &x [1]\nb: *x\n", 2, 4),
        ("Executable: !!python/object:os.system a\n", 1, 13),
        ("? [a]\n: b\n", 1, 3),
        ("just words\n", 1, 1),
        ("- a\n", 1, 1),
    ],
)
def test_errors_have_line_and_column_and_show_the_line(text: str, line: int, column: int) -> None:
    problem = refusal(text).problems[0]
    assert (problem.file, problem.line, problem.column) == ("job.yaml", line, column)
    assert problem.excerpt == text.splitlines()[line - 1]


@pytest.mark.parametrize("text", ["", "  \n", "# nothing\n", "---\n", "\0", "x" * 1_000_001])
def test_texts_without_a_description_are_refused(text: str) -> None:
    assert refusal(text).problems


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ('[ Executable = "a"; ]', True),
        ('Executable = "a";', True),
        ('// a comment\n/* and\nanother */ [\n Executable = "a" ]', True),
        ("# comment\nExecutable = 1", True),
        ("Parameters.A = 3", True),
        ("[]", True),
        ("Executable: a", False),
        ('{"Executable": "a=b"}', False),
        ("[{Executable: a}]", False),
        ("- Executable: a", False),
        ("Arguments: x=1", False),
    ],
)
def test_jdl_is_told_from_yaml_by_its_first_assignment(text: str, expected: bool) -> None:
    assert jdl.find_language(text) is (jdl.Language.JDL if expected else jdl.Language.YAML)


@pytest.mark.parametrize(
    ("text", "wrong"),
    [
        ("Executable: " + "[" * 100 + "]" * 100, "nested too deeply"),
        ("Executable: " + "[" * 100_000 + "]" * 100_000, "nested too deeply|maximum nesting depth"),
        ("Executable: [" + "1," * 200_000 + "]", "too long, allowed are 50000 names and values"),
        ("InputData: [" + "[]," * 25_000 + "]", "too long, allowed are 50000 names and values"),
        ("[" + "{}," * 200_000 + "]", "too long, allowed are 50000 names and values"),
        ("--- {}\n" * 100_000, "too long, allowed are 50000 names and values"),
    ],
)
def test_what_would_take_long_to_read_is_refused(text: str, wrong: str) -> None:
    with pytest.raises(InvalidJob, match=wrong):
        jdl.read_yaml(text)
