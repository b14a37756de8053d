"""Job descriptions of a genuine DIRAC: made by its Job API, and read by the model of its JobManager.

Imported by the Python of a genuine DIRAC; lists of texts in JSON come and go by the standard streams.
"""

import io
import json
import sys
from typing import Any

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


def make_texts() -> list[str]:
    """The descriptions that the Job API makes."""
    from DIRAC.Interfaces.API.Job import Job

    texts = []
    for calls in JOBS:
        job = Job()
        for name, *arguments in calls:
            result = getattr(job, name)(*arguments)
            assert result is None or result["OK"], (name, arguments, result["Message"])
        texts.append(job._toJDL(jobDescriptionObject=io.StringIO(job._toXML())))
    return texts


def read_text(text: str) -> Any:
    """The jobs of a description as the model has them; None: DIRAC refuses it."""
    from DIRAC.Core.Utilities.ClassAd.ClassAdLight import ClassAd
    from DIRAC.Core.Utilities.JDL import jdlToBaseJobDescriptionModel
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
    texts = [text]
    if number["Value"]:
        made = generateParametricJobs(ClassAd(text))
        if not made["OK"]:
            return None
        texts = made["Value"]
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


def main() -> None:
    """Answer `make` with texts, and `read` with the models of the texts that came."""
    DIRAC.initialize(require_auth=False)
    answer: Any = (
        make_texts() if sys.argv[1] == "make" else list(map(read_text, json.loads(sys.stdin.read())))
    )
    print("ANSWER" + json.dumps(answer))  # noqa: T201
