"""Descriptions of DIRAC's Job API and documentation: what DIRAC's model takes, we take, and it comes back."""

import json
import os
import subprocess
from pathlib import Path
from typing import Any

import pytest

from examples.servers.dirac import write_cfg
from examples.servers.dirac_package import install
from pilotage.dirac_door import dialect
from tests.unit.pilotage.dirac_door.test_dialect import JOB, stored, texts

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
        [str(install()), "-c", "import genuine_descriptions; genuine_descriptions.main()", command],
        input=json.dumps(given),
        capture_output=True,
        text=True,
        timeout=600,
        cwd=directory,
        env={
            "PATH": os.environ["PATH"],
            "HOME": str(directory),
            "DIRACSYSCONFIG": str(directory / "dirac.cfg"),
            "PYTHONPATH": str(Path(__file__).parents[1]),
        },
    )
    _, found, text = done.stdout.rpartition("ANSWER")
    assert found, done.stdout + done.stderr
    return json.loads(text)


@pytest.mark.debian("dirac")
@pytest.mark.slow
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


def _normalise(model: dict[str, Any]) -> dict[str, Any]:
    """Without what has no meaning: ANY, blanks in lists, the number of the job and those of parameters."""
    found = {name: "".join(value.split()) if name == "outputSE" else value for name, value in model.items()}
    extra = {
        name: value
        for name, value in found["extraFields"].items()
        if name not in ("JobID", "Parameter", "ParameterNumber") and not name.startswith("Parameter.")
    }
    any_platform = "" if found["platform"].lower() == "any" else found["platform"]
    sites = [each for each in found["sites"] if each != "ANY"]
    return {**found, "extraFields": extra, "platform": any_platform, "sites": sites}
