"""What keeps a gateway from being opened: its surroundings, which its file names; and how its threads end."""

import threading
from pathlib import Path

import pytest

from pilotage.cli.processes import gateway
from pilotage.fabric.gateway.configuration import InvalidGateway

FILE = """\
url: https://pilotage.example.org
name: gate
token_file: {directory}/gateway.token
vos: [cms]
directory: {directory}/state
systems: {{farm: {{kind: slurm, directory: {directory}/shared}}}}
queues: [{{queue: LCG.A.org/ce1/long, system: farm}}]
authorities: {directory}/authorities
"""


def opening(directory: Path, token: str) -> str:
    """Why it is not opened."""
    (directory / "gateway.token").write_text(token)
    (directory / "authorities").mkdir()
    file = directory / "gateway.yaml"
    file.write_text(FILE.format(directory=directory))
    with (
        pytest.raises(InvalidGateway) as refused,
        gateway.open_gateway(gateway.read_gateway_file(file), file),
    ):
        pass
    return str(refused.value)


def test_authorities_without_a_certificate_are_told_by_their_place_in_the_file(tmp_path: Path) -> None:
    assert "authorities: authorities" in opening(tmp_path, "a.b.c")


def test_a_file_without_a_token_is_told_in_the_words_of_gateways(tmp_path: Path) -> None:
    assert "gateway.token: holds no token" in opening(tmp_path, "two words")


def test_after_a_signal_no_thread_begins_another_cycle_while_others_end_theirs() -> None:
    stop, cycles = threading.Event(), []

    def work() -> None:
        cycles.append(threading.current_thread())
        stop.set()
        begun.set()

    begun = threading.Event()
    with gateway._repeat_in_thread("work", work, 0.0, stop):
        assert begun.wait(300)
        cycles[0].join(300)
        assert not cycles[0].is_alive()
    assert len(cycles) == 1
