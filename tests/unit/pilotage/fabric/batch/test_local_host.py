"""This host as a batch system, in orders of events that are rare."""

import subprocess
from pathlib import Path

from pilotage.fabric.batch import local_host
from pilotage.fabric.batch.batch_system import BatchJob, Handle, State
from pilotage.fabric.batch.local_host import QUEUE, LocalHost

SLEEPS = "#!/bin/sh\nexec sleep 600\n"


def test_a_job_that_was_killed_before_its_process_was_there_does_not_run_when_that_comes(
    tmp_path: Path,
) -> None:
    host = LocalHost(directory=str(tmp_path), cores=1, memory=1000)
    first, second = (Handle(stamp=f"test-{name}-job") for name in ("first", "second"))
    for handle in (first, second):
        host.submit(BatchJob(stamp=handle.stamp, script=SLEEPS, queue=QUEUE))
    host.kill([second])
    assert host.status([second])[second.stamp].state is State.KILLED

    area = tmp_path / second.stamp
    (area / "job").write_text("#!/bin/sh\n:\n")
    subprocess.run(["sh", "-c", local_host._LAUNCH, area], check=False)

    assert not (area / "started").exists()
    assert host.status([second])[second.stamp].state is State.KILLED
    host.kill([first])
