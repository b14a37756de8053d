"""Descriptions of DIRAC's Job API, transformations and documentation: what DIRAC takes, we take.

It comes back as DIRAC's model has it, and JobAgents read what they would get from DIRAC.
"""

import json
import os
import subprocess
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from examples.servers.dirac import write_cfg
from examples.servers.dirac_package import install
from pilotage.plugins.dirac import dialect
from taskqueue.jobs import placeholders
from tests.plugins.dirac.test_dialect import JOB, stored, texts

#: What DIRAC's API and model look for in its configuration.
CONFIGURATION = {
    "DIRAC": {"VirtualOrganization": "lhcb"},
    "Resources": {
        "Sites": {
            "LCG": {
                "LCG.CERN.cern": {"CE": "ce503.cern.ch", "CEs": {"ce503.cern.ch": {"CEType": "AREX"}}},
                "LCG.CNAF.it": {"CE": "ce.cnaf.it", "CEs": {"ce.cnaf.it": {"CEType": "AREX"}}},
            }
        },
        "Computing": {"OSCompatibility": {"x86_64-el9": "x86_64-el9"}},
    },
    "Operations": {
        "Defaults": {
            "JobDescription": {"AllowedJobTypes": "User, Test, MCSimulation, Merge"},
            "InputDataPolicy": {"Download": "DownloadInputData", "Protocol": "InputDataByProtocol"},
        },
    },
    "Registry": {"Groups": {"lhcb_user": {"Users": "ada", "VO": "lhcb"}}},
}


def _run(directory: Path, command: str, given: list[str]) -> Any:
    (directory / "dirac.cfg").write_text("\n".join(write_cfg(CONFIGURATION)))
    done = subprocess.run(
        [str(install()), "-c", "import descriptions; descriptions.main()", command],
        input=json.dumps(given),
        capture_output=True,
        text=True,
        timeout=600,
        cwd=directory,
        env={
            "PATH": os.environ["PATH"],
            "HOME": str(directory),
            "DIRACSYSCONFIG": str(directory / "dirac.cfg"),
            "PYTHONPATH": str(Path(__file__).parents[1] / "support" / "dirac"),
        },
    )
    _, found, text = done.stdout.rpartition("ANSWER")
    assert found, done.stdout + done.stderr
    return json.loads(text)


@pytest.mark.debian("dirac")
@pytest.mark.timeout(1800)
def test_what_dirac_takes_is_taken_and_comes_back_equal(tmp_path: Path) -> None:
    made = _run(tmp_path, "make", [])
    wanted = [*made, *texts()]
    models = _run(tmp_path, "read", wanted)
    assert all(models[: len(made)]), "DIRAC refuses what its own API has made"
    taken = [(text, found) for text, found in zip(wanted, models, strict=True) if found]
    assert len(taken) >= 60
    ours = [stored(text) for text, _ in taken]
    written = [dialect.write_jdl(body, JOB) for bodies in ours for body in bodies]
    again = iter(_run(tmp_path, "read", written))
    for (text, found), bodies in zip(taken, ours, strict=True):
        assert len(bodies) == len(found), text
        for expected in found:
            [back] = next(again) or [None]
            assert back is not None, text
            assert _normalise(back) == _normalise(expected), text


@pytest.mark.debian("dirac")
@pytest.mark.timeout(1800)
def test_jobagents_read_what_they_would_get_from_dirac(tmp_path: Path) -> None:
    wanted = [*_run(tmp_path, "make", []), *texts()]
    models = _run(tmp_path, "read", wanted)
    taken = [text for text, found in zip(wanted, models, strict=True) if found]
    by_dirac = _run(tmp_path, "hand_out", taken)
    written = [
        [
            dialect.write_jdl(placeholders.fill_job_id(body, number), replace(JOB, job_id=number))
            for number, body in enumerate(stored(text), 1)
        ]
        for text in taken
    ]
    received = iter(_run(tmp_path, "receive", [text for jobs in written for text in jobs]))
    for text, jobs, expected in zip(taken, written, by_dirac, strict=True):
        assert len(jobs) == len(expected), text
        for each in expected:
            assert _choose(next(received)) == _choose({"JobType": dialect.DEFAULT_TYPE, **each}), text


#: Keywords that DIRAC makes itself, or leaves to others.
OF_DIRAC = {"CPUTime", "DIRACSetup", "JobRequirements", "OwnerDN", "Parameter", "ParameterNumber"}


def _choose(parameters: dict[str, Any]) -> dict[str, object]:
    """Without what has no meaning to JobWrappers: a list of one, an empty value, blanks, `LFN:`."""
    return {
        name: _strip(value)
        for name, value in parameters.items()
        if name not in OF_DIRAC and not name.startswith("Parameter.") and _strip(value)
    }


def _strip(value: str | list[str]) -> list[str]:
    items = value if isinstance(value, list) else [value]
    return ["".join(item.removeprefix("LFN:").split()) for item in items if item]


def _normalise(model: dict[str, Any]) -> dict[str, Any]:
    """Without what has no meaning: ANY, blanks in lists, the job's numbers, and what DIRAC computes anew."""
    found = {name: "".join(value.split()) if name == "outputSE" else value for name, value in model.items()}
    extra = {
        name: value
        for name, value in found["extraFields"].items()
        if name not in ("JobID", "JobRequirements", "Parameter", "ParameterNumber")
        and not name.startswith("Parameter.")
    }
    any_platform = "" if found["platform"].lower() == "any" else found["platform"]
    sites = [each for each in found["sites"] if each != "ANY"]
    return {**found, "extraFields": extra, "platform": any_platform, "sites": sites}
