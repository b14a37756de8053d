"""Submit files of HTCondor and batch scripts of Slurm as descriptions, and what is left out of them."""

import json
from contextlib import suppress
from pathlib import Path

import pytest

from cs_config import validate
from cs_config.options import bounds
from optimizers.description import parametric
from optimizers.submit.checking import check_sources
from optimizers.submit.submitter import Submitter
from pilotage.cli import application
from pilotage.plugins.formats.batch_scripts import read_batch_script
from pilotage.plugins.formats.job_import import WITHOUT_EFFECT, ImportedJobs
from pilotage.plugins.formats.submit_files import read_submit_file
from requirements.errors import InvalidJob
from taskqueue.jobs import placeholders

SUBMIT_FILE = """
# A scan.
executable   = bin/fit.sh
arguments    = "--seed $(Process) --title 'two words' $(mass)"
output       = out/fit.$(Cluster).$(Process).out
error        = out/fit.err
log          = fit.log
transfer_input_files = data.root, https://example.org/x, \\
                       cards/$(mass).txt
transfer_output_files = fit.root
environment  = "MODE=fast TITLE='a b'"
request_memory = 2 GB
request_cpus = 4
docker_image = debian:stable
+MaxRuntime  = 3600
requirements = OpSysAndVer == "AlmaLinux9"
retries      = $(more)
max_retries  = 3
queue mass in (115, 120 125)
"""

SCRIPT = """#!/bin/bash
#SBATCH --job-name=scan
#SBATCH -o logs/%x-%A_%a.out
#SBATCH --time=1-02:00:00 --mem 4G
#SBATCH -c 2 # of each task
#SBATCH --array=1-7:3,9%2
#SBATCH --gres=gpu:a100:2
#SBATCH --partition=long
#SBATCH --export=ALL,MODE=fast

module load root
#SBATCH --qos=late
"""


OWNER = Submitter(subject="ada", vo="cms", owner="ada", owner_group="cms_user")
SANDBOX = f"sha256:{'0' * 64}"


def read(text: str, directory: Path = Path()) -> ImportedJobs:
    return read_submit_file(text, name="job.sub", directory=directory)


def list_arguments(description: dict[str, object]) -> list[object]:
    """The arguments of each job that the service makes of a description."""
    split = parametric.split_description(description)
    if not split.parameters:
        return [description.get("Arguments", [])]
    members = parametric.expand_parameters(split, most=100)
    return [placeholders.fill_value(description.get("Arguments", []), each) for each in members]


def test_a_submit_file_becomes_a_description_with_its_jobs() -> None:
    found = read(SUBMIT_FILE)

    [description] = found.descriptions
    assert description == {
        "Executable": "fit.sh",
        "InputSandbox": ["bin/fit.sh", "data.root", "cards/%(mass)s.txt"],
        "Arguments": ["--seed", "%(Process)s", "--title", "two words", "%(mass)s"],
        "StdOutput": "fit.%j.%(Process)s.out",
        "StdError": "fit.err",
        "OutputSandbox": ["fit.root"],
        "Environment": ["MODE=fast", "TITLE=a b"],
        "MinRAM": 2048,
        "NumberOfProcessors": 4,
        "Image": "docker://debian:stable",
        "MaxWallClockTime": 3600,
        "Parameters.Process": ["0", "1", "2"],
        "Parameters.mass": ["115", "120", "125"],
    }


def test_what_is_left_out_of_a_submit_file_is_named_once() -> None:
    assert [line.partition(":")[0] for line in read(SUBMIT_FILE + "queue 2\n").left_out] == [
        "$(Cluster)",
        "transfer_input_files = https",
        'requirements = OpSysAndVer == "AlmaLinux9"',
        "retries",
        "max_retries = 3",
        "log = fit.log",
        "$(mass)",  # of the second queue statement, which has no items
    ]


def test_what_has_no_value_is_told_and_an_empty_list_of_outputs_is_empty() -> None:
    file = "executable = x\narguments = --in $(fname) $(seed:1)\nlog = $(logs)/x\nRequestCpus = 4\n"
    found = read(f'{file}transfer_output_files = ""\nqueue $(N)\n')
    assert found.left_out == [
        "$(N): has no value in this file, and is left empty",
        "$(fname): has no value in this file, and is left empty",
        "log = /x: without effect here: it happens anyway, or means nothing",
    ]
    [description] = found.descriptions
    assert description["Arguments"] == ["--in", "1"]
    assert description["NumberOfProcessors"] == 4
    assert description["OutputSandbox"] == []


@pytest.mark.parametrize(
    ("arguments", "queue", "expected"),
    [
        ("none", "queue", [["none"]]),
        ("none", "queue 2", [["none"]] * 2),
        ("$(Process)", "queue 3", [["0"], ["1"], ["2"]]),
        ("$(x)$(Step)", "queue 2 x in (a, b)", [["a0"], ["a1"], ["b0"], ["b1"]]),
        (
            "\"$(Process) $(x) '$(y)'\"",
            "queue x,y from (\n a, 1 2\n# no\n b 3\n)",
            [["0", "a", "1 2"], ["1", "b", "3"]],
        ),
        ("$(Item)", "queue from items.txt", [["one"], ["two"]]),
        ("$(Process)", "n = 2\nqueue $(n)", [["0"], ["1"]]),
        ("$(x)", "queue x matching files *.dat", [["a.dat"], ["b.dat"]]),
        ("none", "queue arguments from (\n a 'b c'\n d\n)", [["a", "'b", "c'"], ["d"]]),
        ("\"1 $(x) '$(x)'\"", "queue x from (\n a b\n c\n)", [["1", "a", "b", "a b"], ["1", "c", "c"]]),
        ("$(x) $(y)", "queue x, y from (\n a\n b c\n)", [["a"], ["b", "c"]]),
        ("$(x)", "queue x from (\n a b\n)", [["a", "b"]]),
        ("$(x)", "queue x matching [:1] *.dat", [["a.dat"]]),
        ("$(x)", "queue x matching dirs *", [["files"]]),
        ("$(x)", "queue x matching files files, a.*", [["a.dat"]]),
        ("$Fn(x) $Fx(x)", "queue x matching any (*.dat files)", [["a", ".dat"], ["b", ".dat"], ["files"]]),
        ("$(x)", "queue x in [1:] (a, b c)", [["b"], ["c"]]),
        ("$(x)", "queue x in [0] (a b)", [["a"]]),
        ("$INT(Process,%03d)", "queue 2", [["000"], ["001"]]),
        ("none", "queue arguments from (\n f(x) $(Process)\n g(y)\n)", [["f(x)", "0"], ["g(y)"]]),
        ("$(y)", "queue x,y from (\n a, b, c, d\n e f,g\n)", [["b,", "c,", "d"], ["f,g"]]),
        ("+%d %s", "queue", [["+%d", "%s"]]),
    ],
)
def test_each_form_of_queue_makes_its_jobs(
    arguments: str, queue: str, expected: list[object], tmp_path: Path
) -> None:
    for name in ("b.dat", "a.dat"):
        (tmp_path / name).touch()
    (tmp_path / "items.txt").write_text("one\n\ntwo\n")
    (tmp_path / "files").mkdir()
    [description] = read(f"executable = x\narguments = {arguments}\n{queue}\n", tmp_path).descriptions
    assert list_arguments(description) == expected


def test_a_name_of_the_queue_statement_that_is_a_keyword_states_it() -> None:
    text = "queue executable, request_cpus from (\n a.sh 1\n b.sh 2\n)\n"
    found = read(text)
    assert found.descriptions == [
        {
            "Executable": "%(executable)s",
            "InputSandbox": ["%(executable)s"],
            "NumberOfProcessors": "%(NumberOfProcessorsValue)s",
            "Parameters.executable": ["a.sh", "b.sh"],
            "Parameters.NumberOfProcessorsValue": [1, 2],
        }
    ]
    assert found.left_out == []
    [single] = read("executable = a\nqueue request_cpus in (3)\n").descriptions
    assert single["NumberOfProcessors"] == 3


def test_numbers_and_names_of_files_by_item_are_those_of_each_job(tmp_path: Path) -> None:
    (tmp_path / "cards").mkdir()
    for name in ("low.sh", "high.sh"):
        (tmp_path / "cards" / name).touch()
    text = """
executable = $(card)
output = out/$Fn(card).$(ProcId).out
error = $(card).err
request_memory = $(mem)
priority = $(Process)
environment = "CARD=$(card) N=$(ProcId)"
queue 1 card,mem from (
  cards/low.sh 2GB
  cards/high.sh, 500
)
"""
    found = read(text, tmp_path)
    assert found.left_out == []
    checked = check_sources(validate.parse("{}"), OWNER, found.descriptions, sandbox=SANDBOX)
    jobs = [member.whole for each in checked for member in each.submitted.members]
    assert [each.min_ram_mb for each in jobs] == [2048, 500]
    assert [each.priority for each in jobs] == [0, 1]
    assert [each.executable for each in jobs] == ["low.sh", "high.sh"]
    assert [each.std_output for each in jobs] == ["low.0.out", "high.1.out"]
    assert [each.std_error for each in jobs] == ["low.sh.err", "high.sh.err"]
    [matched] = read("executable = $(f)\nqueue f matching files cards/*.sh\n", tmp_path).descriptions
    assert matched["InputSandbox"] == ["%(f)s"]
    assert matched["Parameters.f"] == ["cards/high.sh", "cards/low.sh"]
    assert matched["Parameters.ExecutableValue"] == ["high.sh", "low.sh"]


def test_a_number_that_one_job_has_not_is_left_out_for_all() -> None:
    found = read("executable = a\nrequest_memory = $(m)\nqueue m in (2GB, much)\n")
    assert found.left_out == ["request_memory = $(m): is no number with a unit"]
    assert "MinRAM" not in found.descriptions[0]


def test_jobs_of_several_queue_statements_are_counted_on() -> None:
    text = "executable = a\narguments = $(Process)\nqueue 2\narguments = again $(ProcId)\nqueue 2\nqueue\n"
    first, second, third = read(text).descriptions
    assert (first["Arguments"], first["Parameters"], "ParameterStart" in first) == (["%s"], 2, False)
    assert (second["Arguments"], second["Parameters"], second["ParameterStart"]) == (["again", "%s"], 2, 2)
    assert (third["Arguments"], "Parameters" in third) == (["again", "4"], False)


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("executable = a\n", "has no queue statement"),
        ("queue\n", "job.sub:1: executable is not stated"),
        ("executable = a\nif x\nqueue\nendif\n", "job.sub:2: if is not read"),
        ("executable = a\nnonsense\n", "job.sub:2: 'nonsense' is no keyword"),
        ("executable = a\nqueue x from ls |\n", "no command is run"),
        ("executable = a\nqueue x in [1:] (a)\n", "makes no jobs: line 2: queue x in [1:] (a)"),
        ("executable = a\nqueue 0\n", "job.sub: makes no jobs: line 2: queue 0"),
        ("executable = a\nqueue f matching files *.nope\n", "line 2: queue f matching files *.nope"),
        ("executable = a\nqueue x in [a] (a)\n", "is not understood"),
        ("executable = a\nqueue x in (a\n", "has no )"),
        ("executable = a\nqueue x from none.txt\n", "none.txt"),
        ("executable = a\narguments = +%s\nqueue 2\n", "job.sub:3: arguments: %s is filled for each job"),
        ("executable = a\nx = %j\narguments = $(x)\nqueue\n", "job.sub:4: arguments: %j is filled"),
        ("executable = a\nqueue x in (%j)\n", "x: %j is filled"),
        (f"executable = a\nqueue {'9' * 5_000}\n", "is not understood"),
        (f"executable = a\nqueue {bounds.PARAMETRIC_JOBS + 1}\n", "allowed are 100,000"),
        ("x = $(x)$(x)\nexecutable = $(x)\nqueue\n", "more than 100,000 macros"),
        (f"x = {'x' * 9_000}\nexecutable = {'$(x)' * 12}\nqueue\n", "allowed are 100,000"),
    ],
)
def test_what_is_no_submit_file_is_refused(text: str, problem: str, tmp_path: Path) -> None:
    with pytest.raises(InvalidJob) as refused:
        read(text, tmp_path)
    assert problem in str(refused.value)


def test_a_batch_script_becomes_a_description() -> None:
    found = read_batch_script(SCRIPT, name="dir/scan.sh", arguments=["--fast"])
    assert found.descriptions == [
        {
            "Executable": "scan.sh",
            "Arguments": ["--fast"],
            "InputSandbox": ["scan.sh"],
            "JobName": "scan",
            "MaxWallClockTime": 26 * 3600,
            "MinRAM": 4096,
            "GPUs": 2,
            "StdOutput": "scan-%j_%s.out",
            "Environment": [
                "SLURM_JOB_ID=%j",
                "SLURM_JOBID=%j",
                "SLURM_JOB_NAME=scan",
                "SLURM_SUBMIT_DIR=.",
                "SLURM_NTASKS=1",
                "SLURM_NPROCS=1",
                "SLURM_NNODES=1",
                "SLURM_JOB_NUM_NODES=1",
                "SLURM_NODEID=0",
                "SLURM_PROCID=0",
                "SLURM_LOCALID=0",
                "SLURM_CPUS_PER_TASK=2",
                "SLURM_CPUS_ON_NODE=2",
                "SLURM_JOB_CPUS_PER_NODE=2",
                "SLURM_ARRAY_JOB_ID=%j",
                "SLURM_ARRAY_TASK_ID=%s",
                "SLURM_ARRAY_TASK_COUNT=4",
                "SLURM_ARRAY_TASK_MIN=1",
                "SLURM_ARRAY_TASK_MAX=9",
                "MODE=fast",
            ],
            "NumberOfProcessors": 2,
            "Parameters": ["1", "4", "7", "9"],
        }
    ]
    assert [line.partition(": ")[0] for line in found.left_out] == [
        "array = 1-7:3,9%2",
        "gres = gpu:a100:2",  # the kind
        "partition = long",
        "export = ALL",
    ]


@pytest.mark.parametrize(
    ("option", "gpus", "left_out"),
    [
        ("--gpus=2", 2, []),
        ("-G a100:2", 2, ["gpus = a100:2: GPUs of any kind: require a100 in Requirements"]),
        ("--gpus-per-node=a100:1,v100:2", 3, ["gpus-per-node = a100:1: ", "gpus-per-node = v100:2: "]),
        ("--gres=gpu", 1, []),
        ("--gres=gpu:3", 3, []),
        ("--gres=gpu:a100", 1, ["gres = gpu:a100: GPUs of any kind"]),
        ("--gres=gpu:1g.5gb:2,tmp:50G", 2, ["gres = gpu:1g.5gb:2: GPUs", "gres = tmp:50G: only gpu is"]),
        ("--gres=shard:4", None, ["gres = shard:4: only gpu is known here"]),
        ("--gpus=many", None, ["gpus = many: is no whole number"]),
        ("--gpus=2 --gres=gpu:2", 2, []),
        ("--gpus=2 --gres=gpu:1", 2, ["gres = gpu:1: gpus states GPUs, too: 2"]),
        ("--gpus-per-task=1", None, ["gpus-per-task = 1: state gpus"]),
    ],
)
def test_gpus_of_a_script_are_counted_and_their_kinds_are_named(
    option: str, gpus: int | None, left_out: list[str]
) -> None:
    found = read_batch_script(f"#!/bin/sh\n#SBATCH {option}\n", name="x")
    assert found.descriptions[0].get("GPUs") == gpus
    assert len(found.left_out) == len(left_out)
    assert all(line.startswith(start) for line, start in zip(found.left_out, left_out, strict=True))


def test_no_word_of_a_script_is_lost() -> None:
    """An option without a value takes none from the next word, and lines that are not read are named."""
    script = """#!/bin/sh
#PBS -l select=1:ncpus=4:ngpus=1:gpu_model=a100
#$ -pe smp 4
#BSUB -n 4
# $HOME is not read, #PBS neither
#SBATCH -O --mem=4G --exclusive=user -o /dev/null
#SBATCH --nice --export=HOME,A=b,NONE -W -v --time=5
"""
    found = read_batch_script(script, name="x")
    [description] = found.descriptions
    assert (description["MinRAM"], description["MaxWallClockTime"]) == (4096, 300)
    assert "WholeNode" not in description
    environment = description["Environment"]
    assert isinstance(environment, list)
    assert environment[-1] == "A=b"
    assert sorted(found.left_out) == [
        "#$ -pe smp 4: only lines of #SBATCH are read",
        "#BSUB -n 4: only lines of #SBATCH are read",
        "#PBS -l select=1:ncpus=4:ngpus=1:gpu_model=a100: only lines of #SBATCH are read",
        "exclusive = user: WholeNode = true is a node for this job alone",
        "export = HOME: variables of your terminal are not passed on: name them as NAME=value",
        "nice: is not known here",
        "output = /dev/null: what it writes is kept",
        "overcommit: is not known here",
        "verbose: without effect here: it happens anyway, or means nothing",
        "wait: `pilotage job wait`",
    ]


@pytest.mark.parametrize(
    ("line", "seconds"), [("5", 300), ("5:30", 330), ("1:00:01", 3601), ("1-1", 90_000), ("0-0:2", 120)]
)
def test_each_form_of_a_time_is_read(line: str, seconds: int) -> None:
    [found] = read_batch_script(f"#!/bin/sh\n#SBATCH -t {line}\n", name="x").descriptions
    assert found["MaxWallClockTime"] == seconds


def test_no_limit_of_time_and_all_memory_of_a_node_are_told() -> None:
    found = read_batch_script("#!/bin/sh\n#SBATCH --mem=0 --time=0\n", name="x")
    assert found.descriptions[0]["WholeNode"] is True
    assert not {"MinRAM", "MaxWallClockTime"} & found.descriptions[0].keys()
    assert found.left_out == [
        "time = 0: is no limit: the job gets what the queue allows",
        "mem = 0: is the memory of a node: WholeNode asks for one",
    ]


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("echo\n", "does not begin with #!"),
        ("#!/bin/sh\n#SBATCH array\n", "x:2: 'array' is no option"),
        ("#!/bin/sh\n#SBATCH --array=4-1\n", "has no index"),
        ("#!/bin/sh\n#SBATCH --array=1-2 --export=A=%s\n", "x: A=%s: %s is filled for each job"),
        ("#!/bin/sh\n#SBATCH -J a%j\n", "x: a%j: %j is filled for each job"),
        ("#!/bin/sh\n#SBATCH --array=a\n", "is no list of indices"),
        ("#!/bin/sh\n#SBATCH --array=0-999999999\n", "allowed are 100,000"),
        ("#!/bin/sh\n#SBATCH -n 2\n#SBATCH hetjob\n", "x:3: hetjob begins another component"),
        ("#!/bin/sh\n#SBATCH --comment='\n", "x:2: No closing quotation"),
    ],
)
def test_what_is_no_batch_script_is_refused(text: str, problem: str) -> None:
    with pytest.raises(InvalidJob, match=problem):
        read_batch_script(text, name="x")


def run(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[str, str]:
    with suppress(SystemExit):
        application.main(["job", "import", *words])
    return capsys.readouterr()


def test_a_byte_order_mark_begins_neither_a_submit_file_nor_its_items(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """As editors of Windows write it; of a script the report names it, since nothing would start it."""
    file, items, script = (tmp_path / name for name in ("job.sub", "items.txt", "job.sh"))
    file.write_text("executable = /bin/date\narguments = $(x)\nqueue x from items.txt\n", "utf-8-sig")
    items.write_text("one\ntwo\n", "utf-8-sig")
    script.write_text("#!/bin/sh\ndate\n", "utf-8-sig")
    found, _ = run(capsys, "htcondor", str(file))
    assert "/bin/date" in found
    assert "one" in found
    assert "\ufeff" not in found
    found, report = run(capsys, "sbatch", str(script))
    assert "Executable: job.sh" in found
    assert "left out: byte order mark: remove it" in report


def test_the_commands_print_descriptions_and_the_report(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "job.sub").write_text(SUBMIT_FILE)
    (tmp_path / "job.sh").write_text(SCRIPT)
    printed, report = run(capsys, "htcondor", str(tmp_path / "job.sub"), "--json")
    assert json.loads(printed)["Executable"] == "fit.sh"
    assert "left out: max_retries = 3: `pilotage job resubmit`" in report
    assert "OutputSandbox" not in report
    printed, report = run(capsys, "sbatch", str(tmp_path / "job.sh"))
    assert "Executable: job.sh" in printed
    assert "left out: partition = long: name sites" in report
    assert "only files that OutputSandbox names come back" in report
    assert "no.sub: " in run(capsys, "htcondor", str(tmp_path / "no.sub"))[1]


def test_keywords_without_effect_are_named_together_and_those_that_change_the_job_alone() -> None:
    file = 'executable = x\n+ProjectName = "P"\nlog = a.log\nstream_output = true\n'
    same = read(f"{file}should_transfer_files = YES\nwhen_to_transfer_output = ON_EXIT\nqueue\n")
    assert same.left_out == [
        '+ProjectName = "P": is not known here',
        "log = a.log, stream_output = true, should_transfer_files = YES, when_to_transfer_output = ON_EXIT: "
        + WITHOUT_EFFECT,
    ]
    other = read("executable = x\nShould_Transfer_Files = NO\nwhen_to_transfer_output = ON_SUCCESS\nqueue\n")
    assert other.left_out == [
        "Should_Transfer_Files = NO: files are sent always: jobs share no directory with you",
        "when_to_transfer_output = ON_SUCCESS: files come back whenever the program has ended by itself",
    ]
    script = "#!/bin/sh\n#SBATCH --no-kill --requeue --open-mode=append\n"
    assert read_batch_script(script, name="x").left_out == [
        "open-mode = append: each attempt has a standard output of its own",
        "no-kill, requeue: without effect here: it happens anyway, or means nothing",
    ]


def test_keywords_after_the_last_queue_statement_are_told() -> None:
    found = read("executable = x\nqueue\nRequest_Memory = 4 GB\n")
    assert found.left_out == ["Request_Memory = 4 GB: stands after the last queue statement"]


@pytest.mark.parametrize("keyword", ["batch_name", "JobBatchName", "+JobBatchName"])
@pytest.mark.parametrize("value", ['"n:m"', "n:m"])
def test_a_quoted_name_of_jobs_loses_its_quotes(keyword: str, value: str) -> None:
    if keyword.startswith("+") and not value.startswith('"'):
        value = f'"{value}"'
    [found] = read(f"executable = x\n{keyword} = {value}\nqueue\n").descriptions
    assert found["JobGroup"] == "n:m"


@pytest.mark.parametrize(
    ("options", "cores", "left_out"),
    [
        ("-N1 --ntasks-per-node=4", 4, ["ntasks = 4"]),
        ("-N1 --ntasks-per-node=4 -c 2", 8, ["ntasks = 4"]),
        ("-n 2 --ntasks-per-node=4", 2, ["ntasks-per-node = 4", "ntasks = 2"]),
        ("--cpus-per-task=0", None, ["cpus-per-task = 0"]),
        ("--ntasks=0", None, ["ntasks = 0"]),
        ("-c many", None, ["cpus-per-task = many"]),
    ],
)
def test_processors_follow_from_tasks_of_the_job_or_its_node(
    options: str, cores: int | None, left_out: list[str]
) -> None:
    found = read_batch_script(f"#!/bin/sh\n#SBATCH {options}\n", name="x")
    assert found.descriptions[0].get("NumberOfProcessors") == cores
    assert [line.partition(":")[0] for line in found.left_out] == left_out


def test_variables_of_slurm_that_nothing_sets_are_named() -> None:
    script = "#!/bin/sh\n#SBATCH -a 1-2 -c 3\n"
    uses = "cd $SLURM_SUBMIT_DIR; SLURM_OWN=1; echo $SLURM_NODELIST ${SLURM_CPUS_ON_NODE} $SLURM_GTIDS\n"
    found = read_batch_script(f"{script}{uses}echo $SLURM_ARRAY_JOB_ID\n", name="x")
    assert found.left_out == [
        "SLURM_ARRAY_JOB_ID: is the id of each job (%j) here",
        "SLURM_NODELIST, SLURM_GTIDS: your script names it, and nothing sets it here",
    ]


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        (b"executable = x\n# caf\xc3", ":2: ends within a character: the file was cut short"),
        (b"\x7fELF\xff\n", ":1: byte 0xff is not UTF-8, which the file has to be"),
        (b"\x7fELF\n\0\n", ":2: byte 0x00 is in no text, which the file has to be"),
        (None, ": cannot be read: No such file or directory"),
    ],
)
@pytest.mark.parametrize("kind", ["htcondor", "sbatch"])
def test_a_file_that_is_no_text_is_refused_with_its_place(
    content: bytes | None, problem: str, kind: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "job"
    if content is not None:
        file.write_bytes(content)
    printed, report = run(capsys, kind, str(file))
    assert not printed
    assert f"{file}{problem}" in report.replace("\n", "") or f"job{problem}" in report
    assert "codec" not in report
