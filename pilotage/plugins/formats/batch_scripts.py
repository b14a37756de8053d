"""Job descriptions from batch scripts with `#SBATCH` lines.

Source: the manual page of sbatch, Slurm 24.11.
"""

import re
import shlex
from collections.abc import Iterator, Mapping, Sequence
from pathlib import PurePosixPath
from typing import Final

from pilotage.plugins.formats.job_import import (
    BYTE_ORDER_MARK,
    IMPLIED,
    ImportedJobs,
    PartlyRead,
    Rule,
    apply_rules,
    check_jobs,
    check_literal,
    check_size,
    imply,
    leave_out,
    note_left_out,
    read_count,
    read_memory,
    refuse,
)

_DIRECTIVE: Final = "#SBATCH"
#: Lines for other batch systems; sbatch reads some of them.
_FOREIGN: Final = re.compile(r"#(?:PBS|BSUB|COBALT|OAR|\$|@)\s+\S.*")
_SHORT: Final = {
    "a": "array",
    "A": "account",
    "b": "begin",
    "c": "cpus-per-task",
    "C": "constraint",
    "d": "dependency",
    "D": "chdir",
    "e": "error",
    "G": "gpus",
    "H": "hold",
    "J": "job-name",
    "L": "licenses",
    "M": "clusters",
    "N": "nodes",
    "n": "ntasks",
    "o": "output",
    "p": "partition",
    "q": "qos",
    "t": "time",
    "w": "nodelist",
    "x": "exclude",
    "i": "input",
    "k": "no-kill",
    "O": "overcommit",
    "Q": "quiet",
    "s": "oversubscribe",
    "v": "verbose",
    "W": "wait",
}
#: Options without a value in the next word.
_SWITCHES: Final = frozenset(
    {
        *("contiguous", "exclusive", "get-user-env", "hold", "ignore-pbs", "nice", "no-kill", "no-requeue"),
        *("oom-kill-step", "overcommit", "oversubscribe", "parsable", "propagate", "quiet", "reboot"),
        *("requeue", "resv-ports", "share", "spread-job", "test-only", "use-min-nodes", "verbose", "wait"),
    }
)
_GPU: Final = re.compile(r"gpu(?::([\w.-]+))??(?::(\d+))?")
#: Patterns of file names, by what they are here.
_PATTERNS: Final = {"j": "%j", "A": "%j", "a": "%s", "t": "0", "n": "0", "s": "batch"}


def _read_time(text: str) -> int:
    """Seconds of minutes, M:S, H:M:S, D-H, D-H:M or D-H:M:S."""
    if text == "0":
        raise ValueError("is no limit: the job gets what the queue allows")
    found = re.fullmatch(r"(?:(\d{1,4})-)?(\d{1,6})(?::(\d{1,2}))?(?::(\d{1,2}))?", text)
    if found is None:
        raise ValueError("is no time")
    days, first, second, third = (None if each is None else int(each) for each in found.groups())
    if days is not None:
        return ((days * 24 + (first or 0)) * 60 + (second or 0)) * 60 + (third or 0)
    if third is not None:
        return ((first or 0) * 60 + (second or 0)) * 60 + third
    return (first or 0) * 60 + (second or 0)


def _read_gpus(text: str) -> PartlyRead:
    """The number of GPUs in a list such as `a100:2`."""
    kinds = ((item, *item.rpartition(":")[::2]) for item in text.split(","))
    return _count_gpus([(item, kind, read_count(number)) for item, kind, number in kinds])


def _read_gres(text: str) -> PartlyRead:
    """The number of GPUs in a list of resources such as `gpu:a100:2`."""
    found = [(item, _GPU.fullmatch(item)) for item in text.split(",")]
    gpus = [(item, gpu[1] or "", read_count(gpu[2] or "1")) for item, gpu in found if gpu]
    others = [(item, "only gpu is known here") for item, gpu in found if not gpu]
    if not gpus:
        raise ValueError(others[0][1])
    counted = _count_gpus(gpus)
    return PartlyRead(counted.value, [*counted.left_out, *others])


def _count_gpus(stated: Sequence[tuple[str, str, int]]) -> PartlyRead:
    """The number of GPUs in items with their kinds, which sites name as they like."""
    kinds = [
        (item, f"GPUs of any kind: require {kind} in Requirements, over what queues state (GPUModel)")
        for item, kind, _ in stated
        if kind
    ]
    return PartlyRead(sum(number for _, _, number in stated), kinds)


def _read_exports(text: str) -> PartlyRead:
    named = text.split(",")
    found = [each for each in named if "=" in each]
    others = [each for each in named if "=" not in each and each not in ("NONE", "NIL")]
    reason = "variables of your terminal are not passed on: name them as NAME=value"
    return PartlyRead(found, [(each, reason) for each in others])


def _read_exclusive(text: str) -> bool:
    if text not in ("", "exclusive"):
        raise ValueError("WholeNode = true is a node for this job alone")
    return True


def _read_nodes(text: str) -> str:
    if text not in ("1", "1-1"):
        raise ValueError("a job runs on one node: it gets the processors of one")
    return ""


_OF_SITE: Final = leave_out("name sites, or what the job needs")
_MAIL: Final = leave_out("web hooks of the VO send mail")

RULES: Final[Mapping[str, Rule]] = {
    "job-name": Rule("JobName"),
    "time": Rule("MaxWallClockTime", _read_time),
    "mem": Rule("MinRAM", read_memory),
    "mem-per-cpu": Rule("MinRAMPerCore", read_memory),
    "gpus": Rule("GPUs", _read_gpus),
    "gpus-per-node": Rule("GPUs", _read_gpus),
    "gres": Rule("GPUs", _read_gres),
    "exclusive": Rule("WholeNode", _read_exclusive),
    "comment": Rule("JobGroup"),
    "export": Rule("Environment", _read_exports),
    "nodes": Rule("_nodes", _read_nodes),
    "requeue": IMPLIED,
    "parsable": IMPLIED,
    "open-mode": imply("truncate", otherwise="each attempt has a standard output of its own"),
    "no-kill": IMPLIED,
    "ignore-pbs": IMPLIED,
    "quiet": IMPLIED,
    "verbose": IMPLIED,
    "wait": leave_out("`pilotage job wait`"),
    "partition": _OF_SITE,
    "qos": _OF_SITE,
    "constraint": leave_out("translate it to Requirements by hand"),
    "nodelist": _OF_SITE,
    "exclude": _OF_SITE,
    "clusters": _OF_SITE,
    "reservation": _OF_SITE,
    "account": leave_out("OwnerGroup is one of your token's groups"),
    "mail-type": _MAIL,
    "mail-user": _MAIL,
    "dependency": leave_out("After names jobs here, by their ids here"),
    "begin": leave_out("`pilotage job hold` and `release`"),
    "hold": leave_out("`pilotage job hold` after the submission"),
    "licenses": leave_out("limits are of sites and VOs"),
    "chdir": leave_out("a job runs in a directory of its own"),
    "input": leave_out("there is no standard input: add it to InputSandbox, and open it"),
    "tmp": leave_out("MinScratch (MB) requires WallTime and Architecture, too"),
    "no-requeue": leave_out("jobs of lost pilots run again; MaxRescheduling bounds it"),
    "mem-per-gpu": leave_out("MinRAM is for the whole job"),
    "cpus-per-gpu": leave_out("state cpus-per-task"),
    "gpus-per-task": leave_out("state gpus, the number for the job"),
}
#: Numbers of tasks and processors.
_COUNTS: Final = ("ntasks", "ntasks-per-node", "cpus-per-task")
#: Read together with others.
_TOGETHER: Final[tuple[str, ...]] = ("array", *_COUNTS, "output", "error")
#: Words of a line that begins another component of a job.
_COMPONENTS: Final = frozenset({"hetjob", "packjob"})


def read_batch_script(text: str, *, name: str, arguments: Sequence[str] = ()) -> ImportedJobs:
    """The description of a batch script, which is its executable; an array has a job for each index.

    Raises InvalidJob for what is no batch script.
    """
    check_size(text, name)
    left_out: list[str] = []
    if text.startswith(BYTE_ORDER_MARK):
        note_left_out(left_out, "byte order mark", "remove it: with it the first line names no program")
        text = text.removeprefix(BYTE_ORDER_MARK)
    if not text.startswith("#!"):
        raise refuse(name, "is no script: it does not begin with #!")
    stated = dict(_list_options(text, name, left_out))
    together: dict[str, str] = {option: stated.pop(option) for option in _TOGETHER if option in stated}
    indices = _list_indices(together.get("array", ""), name, left_out)
    processors = {"ntasks": _read_tasks(together, left_out)}
    processors["cpus-per-task"] = _read_together(together, "cpus-per-task", left_out) or 1
    found = dict(apply_rules(RULES, stated, left_out))
    found.pop("_nodes", None)
    if found.get("MinRAM") == 0:
        note_left_out(left_out, f"mem = {stated['mem']}", "is the memory of a node: WholeNode asks for one")
        del found["MinRAM"]
        found["WholeNode"] = True
    file = PurePosixPath(name).name
    cores = processors["ntasks"] * processors["cpus-per-task"]
    if processors["ntasks"] > 1:
        note_left_out(
            left_out, f"ntasks = {processors['ntasks']}", "there is no srun: start the tasks yourself"
        )
    exported = found.pop("Environment", [])
    own = exported if isinstance(exported, list) else []
    for stated_text in (*arguments, *own, *map(str, found.values())):
        check_literal(stated_text, stated_text, name, has_parameters=len(indices) > 1)
    variables = [*_list_variables(str(found.get("JobName", file)), processors, indices), *own]
    _note_unset_variables(text, variables, left_out)
    description: dict[str, object] = {
        "Executable": file,
        **({"Arguments": list(arguments)} if arguments else {}),
        "InputSandbox": [file],
        **found,
        **dict(_read_outputs(together, found, file, is_array=bool(indices), left_out=left_out)),
        "Environment": variables,
    }
    if cores > 1:
        description["NumberOfProcessors"] = cores
    if len(indices) > 1:
        description["Parameters"] = list(map(str, indices))
    return ImportedJobs(descriptions=[description], left_out=left_out)


def _list_options(text: str, name: str, left_out: list[str]) -> Iterator[tuple[str, str]]:
    """Options of the lines before the first command; lines for other batch systems are left out."""
    for number, line in enumerate(text.splitlines(), 1):
        if line.strip() and not line.startswith("#"):
            return
        if _FOREIGN.fullmatch(line):
            note_left_out(left_out, line, f"only lines of {_DIRECTIVE} are read")
        if not re.match(rf"{_DIRECTIVE}(?:\s|$)", line):
            continue
        try:
            words = iter(shlex.split(line.removeprefix(_DIRECTIVE), comments=True))
        except ValueError as error:
            raise refuse(f"{name}:{number}", str(error)) from None
        for word in words:
            yield _read_option(word, words, f"{name}:{number}")


def _read_option(word: str, words: Iterator[str], where: str) -> tuple[str, str]:
    if word.startswith("--"):
        option, equals, value = word[2:].partition("=")
    elif len(word) > 1 and word[0] == "-":
        option, value = _SHORT.get(word[1], word[1]), word[2:].removeprefix("=")
        equals = value
    elif word in _COMPONENTS:
        raise refuse(where, f"{word} begins another component: a job has one here, import a file for each")
    else:
        raise refuse(where, f"{word!r:.80} is no option of sbatch")
    if option in _SWITCHES or equals:
        return option, value
    return option, next(words, "")


def _list_indices(text: str, name: str, left_out: list[str]) -> list[int]:
    """The indices of an array, such as `0-15:4%2`; none: there is no array."""
    if not text:
        return []
    wanted, percent, most = text.partition("%")
    if percent:
        note_left_out(left_out, f"array = {text}", f"as many run as fit, not {most} at a time")
    found: dict[int, None] = {}
    for part in wanted.split(","):
        match = re.fullmatch(r"(\d{1,9})(?:-(\d{1,9})(?::(\d{1,9}))?)?", part.strip())
        if match is None or match[3] == "0":
            raise refuse(name, f"array={text!r:.80} is no list of indices")
        first, last, step = int(match[1]), int(match[2] or match[1]), int(match[3] or 1)
        check_jobs(max(0, last - first) // step + 1 + len(found), name)
        found |= dict.fromkeys(range(first, last + 1, step))
    if not found:
        raise refuse(name, f"array={text!r:.80} has no index")
    return list(found)


def _read_tasks(stated: Mapping[str, str], left_out: list[str]) -> int:
    """The number of tasks: of the job, else of its node."""
    of_node = _read_together(stated, "ntasks-per-node", left_out)
    tasks = _read_together(stated, "ntasks", left_out)
    if tasks and of_node not in (None, tasks):
        note_left_out(left_out, f"ntasks-per-node = {of_node}", "a job runs on one node: ntasks counts")
    return tasks or of_node or 1


def _read_together(stated: Mapping[str, str], option: str, left_out: list[str]) -> int | None:
    """A number of tasks or processors; None if unset or not read."""
    if option not in stated:
        return None
    try:
        if number := read_count(stated[option]):
            return number
        reason = "is no number above 0: it counts as not stated"
    except ValueError as error:
        reason = str(error)
    note_left_out(left_out, f"{option} = {stated[option]}", reason)
    return None


def _list_variables(job_name: str, processors: Mapping[str, int], indices: Sequence[int]) -> Iterator[str]:
    """Variables of Slurm that scripts read; the working directory is where the files were submitted."""
    tasks, cores = processors["ntasks"], processors["ntasks"] * processors["cpus-per-task"]
    yield from ("SLURM_JOB_ID=%j", "SLURM_JOBID=%j", f"SLURM_JOB_NAME={job_name}", "SLURM_SUBMIT_DIR=.")
    yield from (f"SLURM_NTASKS={tasks}", f"SLURM_NPROCS={tasks}", "SLURM_NNODES=1", "SLURM_JOB_NUM_NODES=1")
    yield from ("SLURM_NODEID=0", "SLURM_PROCID=0", "SLURM_LOCALID=0")
    yield f"SLURM_CPUS_PER_TASK={processors['cpus-per-task']}"
    yield from (f"SLURM_CPUS_ON_NODE={cores}", f"SLURM_JOB_CPUS_PER_NODE={cores}")
    if indices:
        yield "SLURM_ARRAY_JOB_ID=%j"
        yield f"SLURM_ARRAY_TASK_ID={'%s' if len(indices) > 1 else indices[0]}"
        yield f"SLURM_ARRAY_TASK_COUNT={len(indices)}"
        yield f"SLURM_ARRAY_TASK_MIN={min(indices)}"
        yield f"SLURM_ARRAY_TASK_MAX={max(indices)}"


def _note_unset_variables(script: str, variables: Sequence[str], left_out: list[str]) -> None:
    """Note the variables of Slurm that a script names and that it does not find."""
    known = {each.partition("=")[0] for each in variables}
    named = dict.fromkeys(re.findall(r"\bSLURM_[A-Z0-9_]+\b(?!=)", script, re.ASCII))
    unset = [each for each in named if each not in known]
    if "SLURM_ARRAY_JOB_ID" in named and "SLURM_ARRAY_JOB_ID" in known:
        note_left_out(left_out, "SLURM_ARRAY_JOB_ID", "is the id of each job (%j) here")
    if unset:
        note_left_out(left_out, ", ".join(unset), "your script names it, and nothing sets it here")


def _read_outputs(
    stated: Mapping[str, str], found: Mapping[str, object], file: str, *, is_array: bool, left_out: list[str]
) -> Iterator[tuple[str, str]]:
    """Names of the files of standard output and error; what has no counterpart in them is left out."""
    patterns = {**_PATTERNS, "x": str(found.get("JobName", file)), **({} if is_array else {"a": "0"})}
    for option, attribute in (("output", "StdOutput"), ("error", "StdError")):
        text = stated.get(option, "")
        written = PurePosixPath(text).name
        if not written:
            continue
        if text == "/dev/null":
            note_left_out(left_out, f"{option} = {text}", "what it writes is kept")
            continue
        if unknown := [each for each in re.findall(r"%\d*([A-Za-z])", written) if each not in patterns]:
            note_left_out(left_out, f"{option} = {text}", f"%{unknown[0]} is not known here")
            continue
        yield attribute, re.sub(r"%\d*([A-Za-z])", lambda each: patterns[each[1]], written)
