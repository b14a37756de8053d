import pytest

from cs_config import validate
from cs_config.options.operations import options_for
from optimizers.description import description, jdl, parametric
from optimizers.description.description import JobDescription
from requirements.errors import InvalidJob
from requirements.record import Record
from requirements.values import Unevaluated

#: As RFC #7 shows it.
RFC = """
[
Executable = "my_executable";
Requirements = [
SoftwareTag = { "AppVersion1","AppVersion2" };
CPUModel = "Intel Xeon";
Memory = 4000;
]
]
"""

DIRAC = """
[
    JobName = "Test job";
    Executable = "/bin/echo";
    Arguments = "\\"Hello world\\" 'a b'";
    StdOutput = "std.out";
    StdError = "std.err";
    InputSandbox =
        {
            "helper.sh",
            "LFN:/lhcb/user/a/ann/data.txt"
        };
    OutputSandbox = {"std.out","std.err"};
    CPUTime = "36000";
    Site = {"LCG.CERN.ch", "LCG.GRIDKA.de"};
    BannedSites = "LCG.PIC.es";
    Priority = 3;
    Platform = "Linux_x86_64_glibc-2.17";
    Tags = {"8Processors","MultiProcessor"};
    JobGroup = "tests"; // a comment
    /* another */
    JobType = "User";
]
"""

PARAMETRIC = """
Executable = "testParametricJob.sh";
JobName = "Parametric_%n";
Arguments = "%s %(A)s";
Parameters = 20;
ParameterStart = 1;
ParameterStep = 2;
ParameterFactor = 1;
Parameters.A = {"a","b","c","d","e","f","g","h","i","j","a","b","c","d","e","f","g","h","i","j"};
StdOutput = "StdOut_%j";
"""


def parse(text: str) -> JobDescription:
    [raw] = jdl.read_descriptions(text)
    return description.parse_description(raw, options_for(validate.parse("Resources: {}", "test"), "lhcb"))


def refusal(text: str) -> InvalidJob:
    with pytest.raises(InvalidJob) as caught:
        jdl.read_descriptions(text, "job.jdl")
    return caught.value


def test_the_example_of_the_rfc_is_read_as_it_is_written() -> None:
    read = parse(RFC)
    assert read.executable == "my_executable"
    assert isinstance(read.requirements, Record)
    assert dict(read.requirements.values) == {
        "SoftwareTag": ("AppVersion1", "AppVersion2"),
        "CPUModel": "Intel Xeon",
        "Memory": 4000,
    }


def test_a_usual_jdl_of_dirac_is_read() -> None:
    read = parse(DIRAC)
    assert read.arguments == "\"Hello world\" 'a b'"
    assert read.sites == ("LCG.CERN.ch", "LCG.GRIDKA.de")
    assert (read.banned_sites, read.cpu_time, read.priority) == (("LCG.PIC.es",), 36000, 3.0)
    assert read.platforms == ("Linux_x86_64_glibc-2.17",)
    assert read.input_sandbox == ("helper.sh", "LFN:/lhcb/user/a/ann/data.txt")


def test_a_parametric_jdl_of_dirac_is_read() -> None:
    [raw] = jdl.read_descriptions(PARAMETRIC)
    split = parametric.split_description(raw)
    members = parametric.expand_parameters(split, most=100)
    assert len(members) == 20
    assert members[2] == {"n": "02", "s": "5", "A": "c"}
    assert "Parameters.A" not in split.template


def test_an_expression_where_a_text_belongs_is_refused_with_a_hint() -> None:
    [raw] = jdl.read_descriptions('Executable = "a"; Site = LCG.CERN.ch')
    assert raw["Site"] == Unevaluated("LCG.CERN.ch")
    with pytest.raises(InvalidJob, match="is an expression \\(a text needs quotes\\)"):
        parse('Executable = "a"; Site = LCG.CERN.ch')


def test_a_placeholder_without_quotes_is_refused_with_a_hint() -> None:
    message = '% where a value should stand, did you mean "%(M)s"? (job.jdl:1:28)'
    assert message in str(refusal('Executable = "a"; Memory = %(M)s;'))


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ('[\n Executable = "a"\n JobName = "b";\n]', 3),
        ('[ Executable = "a; ]', 1),
        ('Executable = "a";\nCPUTime = 0x10;', 2),
        ('Executable = "a";\nCPUTime = 010;', 2),
        ('Executable = "a";\nCPUTime = 99999999999999999999;', 2),
        ('Executable = "a";\nexecutable = "b";', 2),
        ('[ Executable = "a";\nRequirements = [ Memory = 1; memory = 2; ] ]', 2),
        ('Executable = "a";\nRequirements = other.x >;', 2),
        ('[ Executable = "a"; ] trailing', 1),
        ("[ Executable = {1, 2; ]", 1),
    ],
)
def test_errors_have_line_and_column_and_show_the_line(text: str, line: int) -> None:
    problem = refusal(text).problems[0]
    assert (problem.file, problem.line) == ("job.jdl", line)
    assert problem.column is not None
    assert problem.excerpt is not None
    assert problem.excerpt.strip() == text.splitlines()[line - 1].strip()
    assert f"job.jdl:{line}:" in str(problem)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b'[\n  Executable = "a\xe9b";\n]', "byte 0xe9 is not UTF-8"),
        (b'[\n  Executable = "a\0b";\n]', r"'\x00' is not a valid character"),
        (b"# a comment\nExecutable: abcde\xe9b\n", "byte 0xe9 is not UTF-8"),
    ],
)
def test_a_character_that_no_text_has_is_shown_where_it_stands(content: bytes, message: str) -> None:
    [problem] = refusal(content.decode("utf-8", "surrogateescape")).problems
    assert (problem.message, problem.line, problem.column) == (message, 2, 18)
    assert problem.excerpt is not None
    assert "\ufffd" in problem.excerpt


@pytest.mark.parametrize(
    "text", ['[ Executable = "a"; ]', "Executable = a\nArguments = b", "Executable: a", '{"Executable": "a"}']
)
def test_a_text_may_begin_with_a_byte_order_mark(text: str) -> None:
    assert jdl.read_descriptions("\ufeff" + text) == jdl.read_descriptions(text)
