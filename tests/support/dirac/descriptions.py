"""Job descriptions of a genuine DIRAC: made by its Job API and its transformations, read by the model of its
JobManager, and as its JobAgents get them.

Imported by the Python of a genuine DIRAC; lists of texts in JSON come and go by the standard streams.
"""

import io
import json
import sys
from typing import Any
from unittest.mock import Mock

import DIRAC

#: Calls of the Job API by job.
JOBS: list[list[tuple[Any, ...]]] = [
    [("setExecutable", "/bin/echo")],
    [("setExecutable", "/bin/echo", "hello world", "out.log")],
    [("setExecutable", "/bin/ls", "-ltrA --all x=y")],
    [("setExecutable", "script.sh", "a b c"), ("setInputSandbox", ["script.sh", "data.txt"])],
    [("setExecutable", "/bin/echo", "one"), ("setExecutable", "/bin/echo", "two")],
    [("setExecutable", "/bin/echo"), ("setName", "api job")],
    [("setExecutable", "/bin/echo"), ("setName", "run_7-b.c")],
    [("setExecutable", "/bin/echo"), ("setJobGroup", "group1")],
    [("setExecutable", "/bin/echo"), ("setJobGroup", "00001234")],
    [("setExecutable", "/bin/echo"), ("setCPUTime", 1000)],
    [("setExecutable", "/bin/echo"), ("setCPUTime", 500_000)],
    [("setExecutable", "/bin/echo"), ("setPriority", 5)],
    [("setExecutable", "/bin/echo"), ("setType", "MCSimulation")],
    [("setExecutable", "/bin/echo"), ("setType", "Test")],
    [("setExecutable", "/bin/echo"), ("setLogLevel", "DEBUG")],
    [("setExecutable", "/bin/echo"), ("setDestination", "LCG.CERN.cern")],
    [("setExecutable", "/bin/echo"), ("setDestination", ["LCG.CERN.cern", "LCG.CNAF.it"])],
    [("setExecutable", "/bin/echo"), ("setDestination", "ANY")],
    [("setExecutable", "/bin/echo"), ("setDestinationCE", "ce503.cern.ch")],
    [("setExecutable", "/bin/echo"), ("setBannedSites", "LCG.CNAF.it")],
    [("setExecutable", "/bin/echo"), ("setBannedSites", ["LCG.CNAF.it", "LCG.CERN.cern"])],
    [("setExecutable", "/bin/echo"), ("setPlatform", "any")],
    [("setExecutable", "/bin/echo"), ("setPlatform", "x86_64-el9")],
    [("setExecutable", "/bin/echo"), ("setTag", "GPU")],
    [("setExecutable", "/bin/echo"), ("setTag", ["GPU", "Long"])],
    [("setExecutable", "/bin/echo"), ("setNumberOfProcessors", 4)],
    [("setExecutable", "/bin/echo"), ("setNumberOfProcessors", None, 2, 8)],
    [("setExecutable", "/bin/echo"), ("setNumberOfProcessors", None, 2)],
    [("setExecutable", "/bin/echo"), ("setNumberOfProcessors", None, None, 8)],
    [("setExecutable", "/bin/echo"), ("setRAMRequirements", 2000)],
    [("setExecutable", "/bin/echo"), ("setRAMRequirements", 2000, 4000)],
    [("setExecutable", "/bin/echo"), ("setOutputSandbox", ["out.log", "*.root"])],
    [("setExecutable", "/bin/echo"), ("setOutputSandbox", "out.log")],
    [("setExecutable", "/bin/echo"), ("setInputSandbox", "LFN:/lhcb/user/a/ada/x")],
    [("setExecutable", "/bin/echo"), ("setInputSandbox", ["SB:ProductionSandboxSE|/SandBox/a/b.tar.bz2"])],
    [("setExecutable", "/bin/echo"), ("setInputData", "/lhcb/user/a/ada/x.dst")],
    [("setExecutable", "/bin/echo"), ("setInputData", ["LFN:/lhcb/data/1.dst", "/lhcb/data/2.dst"])],
    [("setExecutable", "/bin/echo"), ("setInputData", ["/lhcb/1"]), ("setInputDataPolicy", "Download")],
    [
        ("setExecutable", "/bin/echo"),
        ("setInputData", ["/lhcb/1"]),
        ("setInputDataPolicy", "Download", False),
    ],
    [("setExecutable", "/bin/echo"), ("setOutputData", ["a.root"])],
    [("setExecutable", "/bin/echo"), ("setOutputData", ["a.root", "b.root"], "CERN-USER")],
    [("setExecutable", "/bin/echo"), ("setOutputData", ["a.root"], ["CERN-USER", "CNAF-USER"], "/test/out")],
    [("setExecutable", "/bin/echo"), ("setConfigArgs", "pilot.cfg")],
    [("setExecutable", "/bin/echo"), ("setExecutionEnv", {"MODE": "fast"})],
    [("setExecutable", "/bin/echo"), ("setExecutionEnv", {"MODE": "fast", "SEED": 7, "TITLE": "two words"})],
    [("setExecutable", "/bin/echo", "%(args)s"), ("setParameterSequence", "args", ["one", "two"])],
    [
        ("setExecutable", "script.sh", "--seed %(seed)s"),
        ("setParameterSequence", "seed", [1, 2, 3]),
        ("setParameterSequence", "place", ["x", "y", "z"]),
        ("setName", "run_%n"),
    ],
    [
        ("setExecutable", "/bin/echo"),
        ("setInputData", ["/lhcb/0"]),
        ("setParameterSequence", "InputData", [["/lhcb/1", "/lhcb/2"], ["/lhcb/3"]], "ParametricInputData"),
    ],
    [
        ("setExecutable", "/bin/echo"),
        ("setInputSandbox", ["SB:SE|/SandBox/a/b.tar.bz2"]),
        ("setParameterSequence", "InputSandbox", [["LFN:/lhcb/x", "LFN:/lhcb/y"], ["LFN:/lhcb/z"]]),
        ("setParameterSequence", "Site", [["LCG.CERN.cern", "LCG.CNAF.it"], ["ANY"]]),
    ],
    [("setExecutable", "/bin/echo"), ("_addJDLParameter", "SoftwarePackages", [])],
    [("setExecutable", "/bin/echo"), ("setOutputSandbox", ["out_%j.log"]), ("setName", "run_%j")],
    [
        ("setExecutable", "script.sh", "all at once"),
        ("setName", "whole"),
        ("setJobGroup", "group2"),
        ("setCPUTime", 86_400),
        ("setPriority", 2),
        ("setDestination", ["LCG.CERN.cern"]),
        ("setTag", ["GPU"]),
        ("setNumberOfProcessors", 8),
        ("setInputSandbox", ["script.sh"]),
        ("setOutputSandbox", ["out.log"]),
        ("setInputData", ["/lhcb/data/1.dst"]),
        ("setOutputData", ["a.root"], "CERN-USER", "/test"),
        ("setExecutionEnv", {"MODE": "fast"}),
        ("setLogLevel", "VERBOSE"),
    ],
]


#: Tasks of transformations, which are submitted as one parametric job each.
TASKS: list[list[dict[str, object]]] = [
    [{"InputData": ["/lhcb/a", "/lhcb/b"], "Site": "LCG.CERN.cern"}, {"InputData": ["/lhcb/c"]}],
    [{"InputData": ["/lhcb/a"]}, {"InputData": ["/lhcb/b"]}],
    [{}, {}],
]


def make_texts() -> list[str]:
    """The descriptions that the Job API makes, then those of transformations."""
    from DIRAC.Interfaces.API.Job import Job

    texts = []
    for calls in JOBS:
        job = Job()
        for name, *arguments in calls:
            result = getattr(job, name)(*arguments)
            assert result is None or result["OK"], (name, arguments, result["Message"])
        texts.append(_format(job))
    return [*texts, *map(_make_bulk_text, TASKS)]


def _format(job: Any) -> str:
    text: str = job._toJDL(jobDescriptionObject=io.StringIO(job._toXML()))
    return text


def _make_bulk_text(tasks: list[dict[str, object]]) -> str:
    from DIRAC.Interfaces.API.Job import Job
    from DIRAC.TransformationSystem.Client.WorkflowTasks import WorkflowTasks

    template = Job()
    template.setExecutable("/bin/echo")
    template.setType("MCSimulation")
    maker = WorkflowTasks(transClient=Mock(), submissionClient=Mock(), jobMonitoringClient=Mock())
    numbered = {
        number: {"TransformationID": 7, "TargetSE": "Unknown", "Site": "ANY", **task}
        for number, task in enumerate(tasks, 1)
    }
    made = maker.prepareTransformationTasks(
        template.workflow.toXML(), numbered, "ada", "lhcb_user", bulkSubmissionFlag=True
    )
    return _format(made["Value"]["BulkJobObject"])


def expand_text(text: str) -> list[str] | None:
    """The descriptions of the single jobs of a description; None: DIRAC refuses it."""
    from DIRAC.Core.Utilities.ClassAd.ClassAdLight import ClassAd
    from DIRAC.WorkloadManagementSystem.Utilities.ParametricJob import (
        generateParametricJobs,
        getParameterVectorLength,
    )

    text = text.strip()
    text = text if text.startswith("[") else f"[{text}"
    text = text if text.endswith("]") else f"{text}]"
    number = getParameterVectorLength(ClassAd(text))
    if not number["OK"]:
        return None
    if not number["Value"]:
        return [text]
    made = generateParametricJobs(ClassAd(text))
    return made["Value"] if made["OK"] else None


def read_text(text: str) -> Any:
    """The jobs of a description as the model has them; None: DIRAC refuses it."""
    from DIRAC.Core.Utilities.ClassAd.ClassAdLight import ClassAd
    from DIRAC.Core.Utilities.JDL import jdlToBaseJobDescriptionModel

    texts = expand_text(text)
    if texts is None:
        return None
    models = []
    for each in texts:
        try:
            read = jdlToBaseJobDescriptionModel(ClassAd(each))
        except (TypeError, ValueError):  # of values that its own conversion does not expect
            return None
        if not read["OK"]:
            return None
        found = read["Value"].model_dump()
        models.append(
            {name: sorted(value) if isinstance(value, set) else value for name, value in found.items()}
        )
    return models


def hand_out(text: str) -> Any:
    """What JobAgents read of the jobs of a description, as JobManager and JobDB would store these.

    The first job has the id 1.
    """
    return [receive(_store(each, number)) for number, each in enumerate(expand_text(text) or (), 1)]


def _store(text: str, job_id: int) -> str:
    """The text of a job as `JobDB.insertNewJobIntoDB` stores it, without its database."""
    from DIRAC.Core.Utilities.ClassAd.ClassAdLight import ClassAd
    from DIRAC.WorkloadManagementSystem.DB import JobDBUtils

    owned = JobDBUtils.checkAndAddOwner(text, "ada", "lhcb_user")
    assert owned["OK"], owned["Message"]
    manifest = owned["Value"]
    manifest.setOption("JobID", job_id)
    job = ClassAd(manifest.dumpAsJDL().replace("%j", str(job_id)))
    job.insertAttributeInt("JobID", job_id)
    asked, columns = ClassAd("[]"), dict[str, object]()
    JobDBUtils.checkAndPrepareJob(job_id, job, asked, "ada", "lhcb_user", columns, "lhcb")
    stored: str = JobDBUtils.createJDLWithInitialStatus(job, asked, [], columns, "Received", "")
    return stored


def receive(text: str) -> Any:
    """The parameters that a JobAgent reads in the text of a job."""
    from DIRAC.WorkloadManagementSystem.Agent.JobAgent import JobAgent

    return JobAgent._getJDLParameters(Mock(), text)["Value"]


def main() -> None:
    """Answer `make` with texts, and the names of other functions with their results for texts that came."""
    DIRAC.initialize(require_auth=False)
    functions = {"read": read_text, "hand_out": hand_out, "receive": receive}
    name = sys.argv[1]
    given = json.loads(sys.stdin.read())
    answer: Any = make_texts() if name == "make" else list(map(functions[name], given))
    print("ANSWER" + json.dumps(answer))  # noqa: T201
