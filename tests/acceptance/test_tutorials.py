"""The tutorials: somebody who types what they say, with Debian's own Python, sees what they show."""

import subprocess
from dataclasses import dataclass
from pathlib import Path

import pytest

from examples.servers.slurm import Slurm
from tests.support.documents import readers, tutorials

pytestmark = [pytest.mark.debian("python"), pytest.mark.timeout(1200)]

ON_ONE_MACHINE = (
    "docs/user/first-job.md",
    "docs/user/scan.md",
    "docs/site-admin/first-queue.md",
    "docs/operator/replay.md",
    "docs/vo-admin/first-change.md",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Reader:
    """Somebody who has done what the front page says."""

    home: Path
    source: Path
    commands: int  #: that were typed

    @property
    def programs(self) -> Path:
        return self.home / "pilotage" / "bin"


@pytest.fixture(scope="module")
def reader(tmp_path_factory: pytest.TempPathFactory) -> Reader:
    home = tmp_path_factory.mktemp("home")
    source = readers.clone(tmp_path_factory.mktemp("source"))
    programs = Path(readers.PYTHON).parent
    with readers.at_home(home, directory=source, programs=programs) as shell:
        count = tutorials.follow_at_home(source / "README.md", shell, part="## Use it")
    return Reader(home=home, source=source, commands=count)


def test_what_the_front_page_says_can_be_typed(reader: Reader) -> None:
    assert reader.commands == 7
    versions = [
        subprocess.run([python, "--version"], capture_output=True, check=True).stdout
        for python in (readers.PYTHON, reader.programs / "python")
    ]
    assert versions[0] == versions[1]


@pytest.mark.debian("slurm")
def test_a_partition_of_slurm_gets_pilots_as_the_tutorial_says(
    reader: Reader, slurm: Slurm, short_directory: Path
) -> None:
    directory = short_directory / "partition"
    directory.mkdir()
    with readers.at_home(
        reader.home, directory=directory, programs=reader.programs, environment=slurm.environment
    ) as shell:
        assert tutorials.follow_at_home(reader.source / "docs/site-admin/slurm-partition.md", shell) > 10


@pytest.mark.parametrize("name", ON_ONE_MACHINE)
def test_a_tutorial_of_one_machine_can_be_followed(name: str, reader: Reader, tmp_path: Path) -> None:
    with readers.at_home(reader.home, directory=tmp_path, programs=reader.programs) as shell:
        assert tutorials.follow_at_home(reader.source / name, shell) > 5
