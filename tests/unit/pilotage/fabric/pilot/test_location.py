"""Where a pilot is that was not told."""

from pathlib import Path

import pytest

from pilotage.fabric.pilot import offer
from pilotage.fabric.pilot.settings import QueuePlace

POSSIBLE_QUEUES = {"short": "LCG.A.org/ce1/short", "long": "LCG.A.org/ce1/long"}
NODE = "LCG.A.org/ce1/node"


@pytest.mark.parametrize("name", ["SLURM_JOB_PARTITION", "PBS_QUEUE", "LSB_QUEUE", "QUEUE"])
def test_the_batch_queue_says_it(tmp_path: Path, name: str) -> None:
    place = offer.find_place(POSSIBLE_QUEUES, {name: "long", "HOME": "short"}, tmp_path / "none")

    assert place == QueuePlace("LCG.A.org", "ce1", "long")


def test_the_site_knows_better_than_the_batch_queue_and_that_better_than_the_node(tmp_path: Path) -> None:
    file = tmp_path / "place"
    file.write_text(f"{NODE}\n")
    slurm = {"SLURM_JOB_PARTITION": "long"}

    said = offer.find_place(POSSIBLE_QUEUES, {**slurm, "PILOTAGE_PLACE": "LCG.A.org/ce1/special"}, file)

    assert str(said) == "LCG.A.org/ce1/special"
    assert str(offer.find_place(POSSIBLE_QUEUES, slurm, file)) == POSSIBLE_QUEUES["long"]
    assert str(offer.find_place(POSSIBLE_QUEUES, {"SLURM_JOB_PARTITION": "other"}, file)) == NODE


@pytest.mark.parametrize(
    ("environment", "message"),
    [
        ({}, "in no batch queue"),
        ({"SLURM_JOB_PARTITION": "debug"}, "in the batch queue debug, which is none of long, short"),
        ({"PILOTAGE_PLACE": "LCG.A.org/ce1"}, "PILOTAGE_PLACE: 'LCG.A.org/ce1' is not an address"),
    ],
)
def test_a_place_that_nobody_says_is_told_with_what_was_looked_at(
    tmp_path: Path, environment: dict[str, str], message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        offer.find_place(POSSIBLE_QUEUES, environment, tmp_path / "none")


@pytest.mark.parametrize("content", ["[]", '{"long": 1}', "not json"])
def test_a_file_by_queues_that_is_none_is_told(tmp_path: Path, content: str) -> None:
    file = tmp_path / "possible_queues.json"
    file.write_text(content)

    with pytest.raises(ValueError, match="--possible-queues"):
        offer.read_possible_queues(str(file))
