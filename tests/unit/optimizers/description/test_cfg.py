import pytest

from cs_config import validate
from cs_config.options.operations import options_for
from optimizers.description import description, jdl
from optimizers.description.description import JobDescription
from requirements.canonical import pool_id
from requirements.classad.expression import Expression
from requirements.errors import InvalidJob
from requirements.record import Record

#: The example of RFC #7, in "a new, CFG format based structure".
RFC = """
Executable = my_executable
Requirements
{
  SoftwareTag = AppVersion1, AppVersion2
  CPUModel = Intel Xeon
  Memory = 4000
}
"""
RFC_AS_JDL = """
[
Executable = "my_executable";
Requirements = [
SoftwareTag = { "AppVersion1","AppVersion2" };
CPUModel = "Intel Xeon";
Memory = 4000;
]
]
"""


def parse(text: str) -> JobDescription:
    [raw] = jdl.read_descriptions(text, "job.cfg")
    return description.parse_description(raw, options_for(validate.parse("Resources: {}", "test"), "lhcb"))


def refusal(text: str) -> str:
    with pytest.raises(InvalidJob) as caught:
        parse(text)
    return str(caught.value)


def test_the_example_of_the_rfc_is_the_same_job_in_cfg_and_in_jdl() -> None:
    cfg, ad = parse(RFC), parse(RFC_AS_JDL)
    assert cfg == ad
    assert cfg.requirements is not None
    assert ad.requirements is not None
    assert pool_id(cfg.requirements, "lhcb") == pool_id(ad.requirements, "lhcb")


def test_a_section_may_come_first_and_its_brace_in_the_line_of_its_name() -> None:
    read = parse(
        "# a comment\nRequirements {\n  SoftwareTag = AppVersion1, AppVersion2\n}\nExecutable = my_executable"
    )
    assert read.executable == "my_executable"
    assert isinstance(read.requirements, Record)
    assert dict(read.requirements.values) == {"SoftwareTag": ("AppVersion1", "AppVersion2")}
    one_line = parse("Executable = my_executable\nRequirements { Memory = 4000 }\n").requirements
    assert isinstance(one_line, Record)
    assert dict(one_line.values) == {"Memory": 4000}


def test_values_are_what_their_keyword_takes() -> None:
    read = parse("""
Executable = run.sh
Arguments = -c "a, b; c" 5
JobName = 2024
InputSandbox = run.sh, "a,b.txt"
Site = LCG.CERN.ch, LCG.KIT.de
CPUTime = 36000
WholeNode = yes
Environment
{
  LEVEL = 1
  LIST = "a, b"
}
Requirements
{
  OSVersion = "9"
  Closed = false
}
""")
    assert read.arguments == '-c "a, b; c" 5'
    assert read.job_name == "2024"
    assert read.input_sandbox == ("run.sh", "a,b.txt")
    assert read.sites == ("LCG.CERN.ch", "LCG.KIT.de")
    assert (read.cpu_time, read.whole_node) == (36000, True)
    assert read.environment == (("LEVEL", "1"), ("LIST", "a, b"))
    assert isinstance(read.requirements, Record)
    assert dict(read.requirements.values) == {"OSVersion": "9", "Closed": False}


def test_a_value_may_be_added_to() -> None:
    read = parse(
        "Executable = a\nRequirements\n{\n  SoftwareTag = V1\n  SoftwareTag += V2\n  Memory += 4000\n}\n"
    )
    assert isinstance(read.requirements, Record)
    assert dict(read.requirements.values) == {"SoftwareTag": ("V1", "V2"), "Memory": 4000}
    assert "named twice" in refusal("Executable = a\nTag = x\nTag += y\nTag = z\n")


def test_requirements_may_be_an_expression() -> None:
    read = parse('Executable = a\nRequirements = other.MaxRAM > 500 && other.OS == "el9"\n')
    assert isinstance(read.requirements, Expression)


def test_parameters_make_many_jobs() -> None:
    [raw] = jdl.read_descriptions("Executable = a\nArguments = %(seed)s\nParameters.seed = 1, 2, 3\n")
    assert raw["Parameters.seed"] == [1, 2, 3]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("Executable = a\nSiet = X\n", "Siet: unknown keyword"),
        ("Executable = a\nMaxRAM = much\n", 'MaxRAM: "much", allowed is a whole number (job.cfg:2:1)'),
        ("Executable = a\nExecutable = b\n", "Executable is named twice, the first time in line 1"),
        ("Executable = a\nRequirements = [\n  Memory = 4000\n]\n", "a semicolon"),
        ("Executable = a\nTag = {x, y}\nRequirements { Memory = 1 }", "Tag: begins as in JDL"),
        ("Executable = a;\nRequirements { Memory = 4000 }\n", "Executable: ends with a semicolon as in JDL"),
        ("Executable = a\nRequirements {\n  Memory = 0x10\n}\n", "Requirements/Memory: "),
        ("Executable = a\nRequirements {\n  Memory = 5\n", "Requirements: the section is not closed"),
        ("Executable = a\nRequirements {\n  Memory\n}\n", "neither an option nor a section"),
        ("Executable = a\nRequirements {\n}\n", "Requirements: is empty"),
        ("Executable = a\nRequirements {\n  Memory = 5\n  memory = 6\n}\n", "named twice"),
    ],
)
def test_mistakes_are_named_with_their_line(text: str, said: str) -> None:
    assert said in refusal(text)


def test_a_jdl_with_one_missing_semicolon_is_still_a_jdl() -> None:
    assert "semicolon" in refusal('Executable = "a"\nArguments = "b";\n')


def test_unterminated_quotes_and_runs_of_blanks_take_no_long_time() -> None:
    for text in ('A = 1\nB = "' + '\\"' * 200_000, "A = 1\nB = a" + " " * 400_000 + "b", "a\n" * 200_000):
        with pytest.raises(InvalidJob):
            parse(text)
