from collections.abc import Mapping
from pathlib import Path
from typing import cast

from pilotage.fabric.pilot.allotment import Allotment
from pilotage.fabric.pilot.payload.preparation import Preparer, Sandboxes
from pilotage.fabric.pilot.payload.work_area import WorkArea
from pilotage.fabric.pilot.settings import PayloadOptions, QueuePlace


def made(
    own: Mapping[str, str] | None = None,
    stated: Mapping[str, str] | None = None,
    passed_on: tuple[str, ...] = (),
    share: Allotment = Allotment(processors=4),  # noqa: B008 - a value
    gpus: tuple[str, ...] = (),
) -> dict[str, str]:
    preparer = Preparer(
        service=cast(Sandboxes, None),
        payload_options=PayloadOptions(work_dir=Path("/work"), passed_on=passed_on),
        place=QueuePlace("LCG.CERN.ch", "ce01", "long"),
        whole=Allotment(processors=8, gpus=gpus),
        environment=own or {},
    )
    area = WorkArea(top=Path("/work"), home=Path("/work/dir"), scratch=Path("/work/tmp"))
    return preparer.build_environment(17, area, share, stated or {})


def test_a_payload_learns_what_dirac_tells_it() -> None:
    found = made()

    assert found["JOBID"] == "17"
    assert found["DIRACSITE"] == "LCG.CERN.ch"
    assert found["DIRAC_PROCESSORS"] == "8"
    assert found["DIRAC_JOB_PROCESSORS"] == "4"
    assert found["HOME"] == found["PWD"] == "/work/dir"
    assert found["TMPDIR"] == "/work/tmp"
    assert found["DIRAC_WHOLENODE"] == "False"


def test_a_payload_learns_what_is_kept_for_it() -> None:
    found = made(share=Allotment(processors=8, ram_mb=16000, gpus=("0", "3"), whole_node=True))
    assert (found["PILOTAGE_JOB_RAM"], found["PILOTAGE_JOB_GPUS"]) == ("16000", "2")
    assert found["DIRAC_WHOLENODE"] == "True"
    assert "PILOTAGE_JOB_RAM" not in made(), "where nobody knows"


def test_a_payload_sees_its_own_gpus_only() -> None:
    slot = ("2", "3", "GPU-5f")
    assert made(gpus=slot, share=Allotment(1, gpus=("3", "GPU-5f")))["CUDA_VISIBLE_DEVICES"] == "3,GPU-5f"
    for name in ("CUDA_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES", "GPU_DEVICE_ORDINAL"):
        assert made(gpus=slot, share=Allotment(1))[name] == "", "a job without any sees none"
    assert "CUDA_VISIBLE_DEVICES" not in made(share=Allotment(1)), "where nobody counts them"


def test_a_payload_of_a_slot_that_got_no_gpu_sees_none() -> None:
    for stated in ("", "10000", "NoDevFiles"):
        found = made({"CUDA_VISIBLE_DEVICES": stated}, share=Allotment(1))
        assert (found["CUDA_VISIBLE_DEVICES"], found["ROCR_VISIBLE_DEVICES"]) == ("", "")


def test_nothing_of_ours_reaches_it_but_what_is_the_systems() -> None:
    own = {
        "PATH": "/bin",
        "LC_ALL": "C",
        "PILOTAGE_TOKEN": "secret",
        "PILOTAGE_URL": "http://x",
        "X509_USER_PROXY": "/tmp/x509",
        "BEARER_TOKEN": "secret",
        "SSH_AUTH_SOCK": "/tmp/agent",
        "PYTHONPATH": "/pilot.pyz",
    }

    found = made(own)

    assert found["PATH"] == "/bin"
    assert found["LC_ALL"] == "C"
    assert not set(own) & set(found) - {"PATH", "LC_ALL"}


def test_a_site_may_pass_on_more_but_never_our_own() -> None:
    found = made({"SW_DIR": "/cvmfs", "PILOTAGE_TOKEN": "secret"}, passed_on=("SW_DIR", "PILOTAGE_TOKEN"))

    assert found["SW_DIR"] == "/cvmfs"
    assert "PILOTAGE_TOKEN" not in found


def test_a_job_states_variables_but_cannot_say_who_it_is() -> None:
    found = made(stated={"MY": "1", "PATH": "/opt/bin", "JOBID": "99", "DIRACSITE": "elsewhere"})

    assert found["MY"] == "1"
    assert found["PATH"] == "/opt/bin"
    assert found["JOBID"] == "17"
    assert found["DIRACSITE"] == "LCG.CERN.ch"


def test_there_is_always_a_path() -> None:
    assert made()["PATH"] == "/usr/local/bin:/usr/bin:/bin"
