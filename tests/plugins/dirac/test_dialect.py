import time
import tracemalloc
from contextlib import suppress
from datetime import UTC, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cs_config import validate
from cs_config.options import bounds
from optimizers.description import description as descriptions
from optimizers.submit.checking import check_sources
from optimizers.submit.submitter import Submitter
from pilotage.plugins.dirac import dialect
from requirements.errors import InvalidJob
from requirements.states import JobStatus
from taskqueue.jobs.jobs import Job

CONFIG = validate.parse("Registry: {VO: {lhcb: {}}}\n", version=1)
SUBMITTER = Submitter(subject="user:ada", vo="lhcb", owner="ada", owner_group="lhcb_user")
NOW = datetime(2026, 11, 22, tzinfo=UTC)
JOB = Job(
    job_id=7,
    vo="lhcb",
    owner="ada",
    owner_group="lhcb_user",
    status=JobStatus.MATCHED,
    minor_status="",
    application_status="",
    job_name="",
    job_type="",
    job_group="",
    priority=1.0,
    description_id=1,
    due_at=None,
    submit_pool=None,
    task_queue_id=None,
    site="",
    epoch=1,
    reschedules=0,
    submitted_at=NOW,
    updated_at=NOW,
    started_at=None,
    ended_at=None,
    exit_code=None,
)

#: As the Job API, the documentation and users of DIRAC write them; all have an Executable.
BODIES = (
    "",
    "Arguments = hello",
    'Arguments = "hello world"',
    "Arguments = -ltrA --all x=y",
    'Arguments = "a=b c=d"',
    "StdOutput = std.out; StdError = std.err",
    'StdOutput = "StdOut"; StdError = "StdErr"',
    "OutputSandbox = {std.err, std.out, *.log}",
    'OutputSandbox = {"StdOut","StdErr"}',
    'OutputSandbox = { "StdOut", "StdErr" }',
    "OutputSandbox = std.out,std.err",
    'OutputSandbox = "std.out"',
    "OutputSandbox = {}",
    'OutputSandbox = {"a"}',
    'InputSandbox = {"SB:ProductionSandboxSE|/SandBox/a/ada.lhcb_user/1/a.tar.bz2"}',
    'InputSandbox = {"SB:SE|/a", "LFN:/lhcb/user/a/ada/x", "script.sh"}',
    "InputSandbox = LFN:/lhcb/user/a/ada/x",
    "JobName = api job",
    'JobName = "DIRAC3/test: one"',
    "JobName = it's",
    'JobName = say "hi"',
    "JobGroup = 00001234",
    'JobType = "MCSimulation"',
    "JobType = User",
    "CPUTime = 1000",
    'CPUTime = "86400"',
    "CPUTime=500000",
    "Priority = 5",
    'Priority = "1"',
    "LogLevel = DEBUG",
    "Site = ANY",
    'Site = "LCG.CERN.cern"',
    "Site = LCG.CERN.cern,LCG.CNAF.it",
    'Site = {"LCG.CERN.cern", "LCG.CNAF.it"}',
    'BannedSites = {"LCG.CERN.cern"}',
    "BannedSites = LCG.CERN.cern",
    "Platform = ANY",
    'Platform = "x86_64-el9"',
    "GridCE = ce503.cern.ch",
    "Tags = {WholeNode}",
    'Tags = {"GPU", "Long"}',
    "Tags = MultiProcessor",
    "NumberOfProcessors = 4",
    "MinNumberOfProcessors = 2; MaxNumberOfProcessors = 8",
    "MinRAM = 2000; MaxRAM = 4000",
    "InputData = LFN:/lhcb/user/a/ada/x.dst",
    "InputData = /lhcb/user/a/ada/x.dst",
    'InputData = {"LFN:/lhcb/data/1.dst","LFN:/lhcb/data/2.dst"}',
    "InputDataPolicy = DIRAC.WorkloadManagementSystem.Client.DownloadInputData",
    "OutputData = {a.root, LFN:/lhcb/user/a/ada/b.root}",
    "OutputSE = CERN-USER",
    'OutputSE = {"CERN-USER", "CNAF-USER"}',
    "OutputPath = /test/out",
    'OutputPath = {"/a", "/b"}',
    "ExecutionEnvironment = A=x%20y",
    'ExecutionEnvironment = {"A=1", "B=two"}',
    "ExecutionEnvironment = {LHAPDF=/cvmfs/x, MODE=fast}",
    "JobConfigArgs = pilot.cfg",
    "AncestorDepth = 2",
    "SoftwarePackages = DaVinci.v12r15",
    'SoftwarePackages = {"Boole.v12r10", "Brunel.v30r17"}',
    "OutputDataModule = LHCbDIRAC.Core.Utilities.OutputDataModule; InputDataModule = x",
    'LogTargetPath = {"LFN:/lhcb/LHCb/MC/LOG/1.tar"}; TransformationID = 1234; TaskID = 7',
    "Requirements = other.GlueCEPolicyMaxCPUTime > 1000",
    "Rank = other.FreeCPUs",
    'VirtualOrganization = "ilc"; Owner = "root"; OwnerGroup = admin; OwnerDN = /CN=x; DIRACSetup = Prod',
    "JobID = 5",
    "args = --seed=5; ConsumedInput = true",
    'DebugLFNs = ""',
    '\n    Arguments\n =\n "a\n b"',
    "Parameters = {a, b, c}; Arguments = %s %n",
    'Parameters = {"x"}; ParameterName = "%s"',
    "Parameters = 3; ParameterStart = 0; ParameterStep = 2; ParameterFactor = 1; Arguments = %s",
    "Parameters = 3; ParameterStart = 0.; ParameterStep = 0.5; Arguments = %s",
    "Parameters = 2; Parameters.A = {1, 2}; Parameters.B = {x, y}; Arguments = %(A)s %(B)s; Name = run%(A)s",
    "Parameters = 3; ParameterStart.A = 1; ParameterStep.A = 2; Arguments = %(A)s %s",
    "Parameters = 3; Arguments = %s",
    "Parameters = 10; ParameterStep = 1; JobName = run%n",
    "Parameters = 11; ParameterFactor = 2.5; Arguments = %s %n",
    "StdOutput = %j_out.txt",
    'Arguments = "-p x={a,b} y={c}"',
    "Arguments = -p x={a,b}",
    "Parameters = 2; Parameters.InputData = {{/a,/b},{/c}}; InputData = %(InputData)s",
    "Parameters = 2; Parameters.F = {{/a, /b},{/c}}; InputData = %(F)s; Arguments = -p F=%(F)s; JobName = x",
    'Parameters = {{"a","b"},{"c"}}; InputSandbox = %s',
    "Parameters = 2; Parameters.S = {{LFN:/a,LFN:/b},{LFN:/c}}; InputSandbox = {SB:x|/y.tar.bz2, %(S)s}",
    "Parameters = 2; Parameters.S = {{/a,/b},{/c}}; InputSandbox = {SB:x|/y.tar.bz2, LFN:%(S)s}",
    "Parameters = 2; Parameters.F = {{/lhcb/a,/lhcb/b},{/lhcb/c}}; InputData = {LFN:%(F)s, /lhcb/%n}",
    'Parameters = 2; Parameters.F = {{/lhcb/a},{/lhcb/c}}; InputData = {"LFN:%(F)s", "/lhcb/x"}',
    "Parameters = 2; Parameters.S = {{log,root},{txt}}; OutputSandbox = {x.%(S)s, err}",
    "Parameters = 2; Parameters.Site = {{LCG.CERN.cern,LCG.CNAF.it},{ANY}}; Site = %(Site)s",
    'JobRequirements = [ Owner = "ada"; CPUTime = 5; Nested = [ a = {"b"}; ]; ]; JobGroup = after',
    "SoftwarePackages = [ ]; JobGroup = after",
    'Kept = [ a = 1; b = {"x", "y"}; ]; Arguments = x',
)


def texts() -> list[str]:
    """Each body in one of the forms that DIRAC accepts."""
    forms = ("Executable = /bin/ls; {};", '[ Executable = "/bin/ls"; {}; ]', "[\nExecutable=/bin/ls;\n{}\n]")
    return [forms[number % len(forms)].format(body) for number, body in enumerate(BODIES)]


def stored(text: str) -> list[dict[str, object]]:
    """The descriptions of the jobs that a text makes, as they are stored."""
    made = check_sources(CONFIG, SUBMITTER, [dialect.read_jdl(text)], check_job=dialect.require_readable)
    members = (member for checked in made for member in checked.submitted.members)
    return [descriptions.stored_body(member.whole) for member in members]


@pytest.mark.parametrize("text", texts())
def test_what_dirac_takes_is_taken_and_comes_back_equal(text: str):
    for body in stored(text):
        written = dialect.write_jdl(body, JOB)
        [again] = stored(written)
        assert again == {**body, "Priority": again["Priority"]}
        assert written.startswith("[\n")
        assert "    JobID = 7;" in written
        assert '    Owner = "ada";' in written


def test_texts_that_are_too_long_are_refused_before_they_are_read():
    with pytest.raises(InvalidJob, match="allowed are"):
        dialect.read_jdl("Executable = /bin/ls;" + " " * bounds.DESCRIBED)


def test_long_texts_are_read_in_time_proportional_to_their_length():
    began = time.process_time()
    for text in (
        "a=1;" * bounds.DIRAC_KEYWORDS,
        "InputData = {" + " " * 5_000 + '"a"b}',
        "a" + " " * 500_000 + ";",
        "a={" + " " * 500_000 + ";",
        'a="' + "\\x" * 250_000 + ";",
        'a={";' * bounds.DIRAC_KEYWORDS,
        "a=[[]" * (bounds.DIRAC_KEYWORDS // 2) + "[][];" * 100_000,
        "a=[[]];" * (bounds.DIRAC_KEYWORDS - 1) + "a=[" + "[]" * 200_000,
    ):
        with suppress(InvalidJob):
            dialect.read_jdl(text)
    assert time.process_time() - began < 10  # seconds; minutes if a part of a text is read again and again


def test_long_values_are_read_in_little_memory():
    tracemalloc.start()
    try:
        for text in ('"{}"', "{{{}}}", "{}"):
            assert dialect.read_jdl(f"Parameters = {text.format('a' * 8_000_000)}")
        assert tracemalloc.get_traced_memory()[1] < 50_000_000
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize(
    ("text", "refusal"),
    [
        ("".join(f"k{number}=1;" for number in range(bounds.DIRAC_KEYWORDS + 1)), "keywords"),
        ("Parameters = {" + "a," * bounds.DIRAC_ITEMS + "a}", "items"),
        ('Parameters = {"a"b,' + "a," * bounds.DIRAC_ITEMS + "a}", "items"),
        ("a=" + "x" * bounds.FILLED, "characters"),
    ],
)
def test_a_text_has_so_many_keywords_items_and_characters(text: str, refusal: str):
    with pytest.raises(InvalidJob, match=rf"{refusal}.*, allowed are"):
        dialect.read_jdl(text)


def test_values_are_read_with_and_without_quotes():
    [body] = stored(
        "Executable = /bin/ls; JobName = api job; ExecutionEnvironment = A=x%20y;"
        " OutputSandbox = {std.err, *.log}"
    )
    assert body["JobName"] == "api job"
    assert body["ExecutionEnvironment"] == {"A": "x%20y"}
    assert body["OutputSandbox"] == ["std.err", "*.log"]
    assert body["JobType"] == "User"


@pytest.mark.parametrize(
    ("text", "values"),
    [
        ("Parameters = 3", ["1", "1", "1"]),
        ("Parameters = 3; ParameterStep = 1", ["1", "2", "3"]),
        ("Parameters = 3; ParameterStart = 0.; ParameterStep = 0.5", ["0.0", "0.5", "1.0"]),
        (
            "Parameters = 3; ParameterStart = 0; ParameterFactor = 2.; ParameterStep = 1",
            ["0.0", "1.0", "3.0"],
        ),
        ("Parameters = {a, b}", ["a", "b"]),
    ],
)
def test_values_of_parameters_are_counted_as_dirac_counts_them(text: str, values: list[str]):
    jobs = stored(f"Executable = /bin/ls; Arguments = %s; {text}")
    assert [each["Arguments"] for each in jobs] == values


@pytest.mark.parametrize(
    ("text", "values"),
    [
        ('Arguments = "%(B)s"; Parameters.B = {{/a,/b},{/c}}', ["{/a,/b}", "{/c}"]),
        ("Arguments = %(B)s; Parameters.B = {{/a, /b},/c}", ["{/a,/b}", "/c"]),
        ('Arguments = "%s"; Parameters = {{"/a","/b"},{"/c"}}', ["{/a,/b}", "{/c}"]),
        (
            'Arguments = "%(B)s %(A)s"; Parameters.A = {x,y}; Parameters.B = {{/a,/b},{/c}}',
            ["{/a,/b} x", "{/c} y"],
        ),
        ('Arguments = "%(B)s"; Parameters.B = {/a,/b}', ["/a", "/b"]),
        ('InputData = {"%(B)s"}; Arguments = "%(B)s"; Parameters.B = {{/a,/b},{/c}}', ["{/a,/b}", "{/c}"]),
    ],
)
def test_a_list_that_is_the_value_of_a_text_keeps_its_braces_as_in_dirac(text: str, values: list[str]):
    """Source: DIRAC 9.1, `ParametricJob.__updateAttribute`, which replaces within the text."""
    jobs = stored(f"Executable = /bin/ls; {text}")

    assert [each["Arguments"] for each in jobs] == values
    assert f'Arguments = "{values[0]}";' in dialect.write_jdl(jobs[0], JOB)
    if "InputData" in text:
        assert [each["InputData"] for each in jobs] == [["/a", "/b"], ["/c"]]


@pytest.mark.parametrize(
    ("text", "values"),
    [
        ("{LFN:%(B)s}; Parameters.B = {{/a,/b},{/c}}", [["/a", "/b"], ["/c"]]),
        ("{LFN:%(B)s, LFN:/x}; Parameters.B = {{/a, /b}, /c}", [["/a", "/b", "/x"], ["/c", "/x"]]),
        ("{LFN:%s}; Parameters = {{/a,/b},{/c}}", [["/a", "/b"], ["/c"]]),
        ("{/x%(B)s%(A)s}; Parameters.B = {{a,/b},{c}}; Parameters.A = {1,2}", [["/xa", "/b1"], ["/xc2"]]),
        ('{"LFN:%(B)s"}; Parameters.B = {{/a},{/c}}', [["/a"], ["/c"]]),
        ('{"LFN:%(B)s"}; Parameters.B = {/a,/c}', [["/a"], ["/c"]]),
    ],
)
def test_a_list_within_an_item_has_no_braces_as_in_dirac(text: str, values: list[list[str]]):
    """Source: DIRAC 9.1, `ParametricJob.__updateAttribute`, which removes the braces in lists."""
    jobs = stored(f"Executable = /bin/ls; InputData = {text}")

    assert [each["InputData"] for each in jobs] == values
    for body in jobs:
        [again] = stored(dialect.write_jdl(body, JOB))
        assert again["InputData"] == body["InputData"]


def test_a_list_within_an_item_of_a_foreign_keyword_has_no_braces_either():
    one, two = stored(
        "Executable = x; Parameters.S = {{/a, /b}, {/c}}; Parameters = 2; InputSandbox = {SB:x, LFN:%(S)s}"
    )
    assert one["ForeignKeywords"] == {"InputSandbox": "{SB:x, LFN:/a, /b}"}
    assert two["ForeignKeywords"] == {"InputSandbox": "{SB:x, LFN:/c}"}


@pytest.mark.parametrize("name", ["InputData", "InputSandbox", "OutputSandbox"])
def test_a_list_within_quotes_is_refused_with_what_to_write(name: str):
    """DIRAC's model takes it, but its JobDB does not: the text begins with a quote that is not closed."""
    wanted = rf"{name}: 'LFN:%\(B\)s' has a list within quotes, .*: write the placeholder alone"
    with pytest.raises(InvalidJob, match=wanted):
        stored(f'Executable = x; {name} = {{"LFN:%(B)s"}}; Parameters.B = {{{{/a,/b}},{{/c}}}}')


@pytest.mark.parametrize(
    ("text", "refusal"),
    [
        ("Parameters = 3; ParameterStart = soon", "ParameterStart: 'soon' is not a number"),
        ("Parameters = 3; ParameterStep = {1, 2}", "ParameterStep: .* is not a number"),
        ("Parameters = 9000; ParameterFactor = 999999999999999999", "grow without end"),
        ("Parameters = 10001", "jobs are too many"),
        ("Parameters = 9000; " + "; ".join(f"ParameterStart.A{n} = 1" for n in range(20)), "allowed are"),
        ("Parameters = 0", "at least 1"),
    ],
)
def test_parameters_without_a_value_for_each_job_are_refused(text: str, refusal: str):
    with pytest.raises(InvalidJob, match=refusal):
        stored(f"Executable = /bin/ls; Arguments = %s; {text}")


def test_single_values_come_back_without_a_list():
    [body] = stored("Executable = /bin/ls; Platform = x86_64-el9; GridCE = ce1; OutputSE = CERN-USER")
    written = dialect.write_jdl(body, JOB)
    for line in ('Platform = "x86_64-el9";', 'GridCE = "ce1";', 'OutputSE = "CERN-USER";'):
        assert f"    {line}\n" in written


def test_foreign_keywords_are_filled_for_each_job_and_given_back():
    one, two = stored("Executable = /bin/ls; Parameters = {a, b}; TaskName = %s; SoftwarePackages = {x, y}")
    assert one["ForeignKeywords"] == {"SoftwarePackages": "{x, y}", "TaskName": "a"}
    assert '    TaskName = "b";' in dialect.write_jdl(two, JOB)
    assert "    SoftwarePackages = {x, y};" in dialect.write_jdl(two, JOB)


def test_the_certificate_says_who_owns_a_job():
    [body] = stored("Executable = /bin/ls; Owner = root; OwnerGroup = admin; VirtualOrganization = ilc")
    assert {"Owner", "OwnerGroup", "VO", "ForeignKeywords"}.isdisjoint(body)


def test_lists_have_a_blank_behind_each_comma():
    [body] = stored("Executable = /bin/ls; OutputSandbox = {a,b,c}")
    assert '    OutputSandbox = {"a", "b", "c"};' in dialect.write_jdl(body, JOB)


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("Executable = /bin/sh; Arguments = \"-c 'a; b'\"", "Arguments"),
        ('Executable = /bin/sh; Arguments = "x[1]"', "Arguments"),
        ('Executable = /bin/sh; StdOutput = "a{b}"', "StdOutput"),
        ('Executable = /bin/sh; OutputSandbox = {"a{b}", "c"}', "OutputSandbox"),
        ('Executable = /bin/sh; OutputSandbox = {"one file", "c"}', "OutputSandbox"),
        ('Executable = /bin/sh; InputSandbox = {"a;b"}', "InputSandbox"),
        ('Executable = /bin/sh; Arguments = "%s"; Parameters = {"a", "b;c"}', "Arguments"),
        ('Executable = /bin/sh; InputSandbox = {"%s"}; Parameters = {{"a"}, {"b", "c;d"}}', "InputSandbox"),
    ],
)
def test_what_no_jobagent_could_read_is_refused(text: str, named: str):
    with pytest.raises(InvalidJob, match=f"{named}: .* which JobAgents of DIRAC cannot read"):
        stored(text)


@pytest.mark.parametrize("value", ["[ a = 1; ", "[ a ] b", "[" * 20 + "]" * 20, "[123"])
def test_brackets_of_a_value_are_closed_at_its_end(value: str):
    with pytest.raises(InvalidJob, match="Kept: begins with a bracket that is not closed"):
        stored(f"Executable = /bin/ls; Kept = {value}; JobName = x")


def test_a_job_comes_back_with_its_own_list():
    one, two = stored(
        "Executable = x; Parameters = {{a, b}, {c}}; InputSandbox = {SB:x, %s}; Arguments = -f %s"
    )
    assert one["ForeignKeywords"] == {"InputSandbox": "{SB:x, a, b}"}
    assert '    Arguments = "-f {a,b}";' in dialect.write_jdl(one, JOB)
    assert two["ForeignKeywords"] == {"InputSandbox": "{SB:x, c}"}


def test_platforms_and_ces_may_be_lists():
    [body] = stored('Executable = x; Platform = {"p1", "p2"}; GridCE = "ce1, ce2"')
    assert (body["Platform"], body["GridCE"]) == (["p1", "p2"], ["ce1", "ce2"])


@pytest.mark.parametrize("text", ["", "Executable", "= 3", "Executable /bin/ls;", "CPUTime = 1000"])
def test_texts_without_a_job_are_refused(text: str):
    with pytest.raises(InvalidJob):
        stored(text)


@given(st.text(st.sampled_from('[]{}=;," \n\\abAE.%') | st.characters(codec="utf-8"), max_size=80))
def test_any_text_is_read_or_refused(text: str):
    try:
        read = dialect.read_jdl(text)
    except InvalidJob:
        return
    assert "JobType" in read
