"""What a command at a gateway prints."""

import shlex
from collections.abc import Iterator, Mapping
from typing import Any

import pytest

from pilotage.cli.commands import site
from pilotage.cli.errors import WrongUsage
from pilotage.fabric.batch import measurements
from pilotage.fabric.batch.shell import NoAnswer


@pytest.mark.parametrize("text", ["[ id = 3", "a b!=7", '{"a b": 1}', "FreeCPUs = 3; x = 4\n[ = 5"])
def test_a_name_that_no_expression_can_read_is_refused(text: str) -> None:
    with pytest.raises(WrongUsage, match="is not a valid name"):
        site.parse_counts(text)


@pytest.mark.parametrize(
    ("text", "is_ad"), [('[ GlueCEUniqueID = "a"; GlueCEStateFreeCPUs = 3 ]', True), ("a b!=7", False)]
)
def test_an_ad_of_glue_1_is_refused_with_the_command_that_reads_it(text: str, is_ad: bool) -> None:
    with pytest.raises(WrongUsage) as refused:
        site.parse_counts(text)
    assert ("`pilotage config import classad`" in str(refused.value)) is is_ad


def test_names_and_values_are_read_from_lines() -> None:
    text = "# counted by ps\nCurrentJobs=12\n\n Load = 0.5\nName=a=b\nDraining=true\nFactor=inf\n"
    said = {"CurrentJobs": 12, "Load": 0.5, "Name": "a=b", "Draining": True, "Factor": "inf"}
    assert site.parse_counts(text) == said


def test_or_from_a_json_object() -> None:
    assert site.parse_counts('\n{"CurrentJobs": 3, "attempts_seen": ["a"]}') == {
        "CurrentJobs": 3,
        "attempts_seen": ["a"],
    }


@pytest.mark.parametrize("text", ["CurrentJobs", "=3", "{broken"])
def test_what_is_neither_is_refused(text: str) -> None:
    with pytest.raises(WrongUsage):
        site.parse_counts(text)


@pytest.mark.parametrize("text", ["A=1\nA=2", "CurrentJobs=1\ncurrentjobs=1", '{"A": 1, "A": 1}'])
def test_a_name_that_is_given_twice_is_refused(text: str) -> None:
    with pytest.raises(WrongUsage, match="is given 2 times"):
        site.parse_counts(text)


@pytest.mark.parametrize(
    ("command", "sign"),
    [("echo A=1; echo B=2", ";"), ("ps | wc -l", "|"), ("echo A=$(date)", "$("), ("a>b", ">")],
)
def test_a_command_that_only_a_shell_understands_is_refused_with_one(command: str, sign: str) -> None:
    with pytest.raises(WrongUsage) as refused:
        site.split(command)
    assert f"without a shell, which {sign!r} needs" in str(refused.value)
    instead = shlex.split(str(refused.value).partition("--watch ")[2])[-1]
    assert site.split(instead) == ["sh", "-c", command]


@pytest.mark.parametrize(
    "command", ["sh -c 'a; b | c'", 'awk "{ print \\"A=\\" NR; }" f', "find . -ok x \\;"]
)
def test_what_is_quoted_is_not_for_a_shell(command: str) -> None:
    assert site.split(command) == shlex.split(command)


@pytest.mark.parametrize(("command", "words"), [("", "no command"), ("echo 'A", "no closing quotation")])
def test_what_is_no_command_is_refused(command: str, words: str) -> None:
    with pytest.raises(WrongUsage, match=words):
        site.split(command)


def test_ldif_of_an_information_system_is_read_as_counts() -> None:
    text = """dn: GLUE2ShareID=s,o=glue
objectClass: GLUE2ComputingShare
GLUE2ComputingShareRunningJobs: 312
GLUE2ComputingShareWaitingJobs: 40
"""
    found = site.parse_counts(text)
    assert found == {"CurrentRunningJobs": 312, "CurrentPendingJobs": 40, "CurrentJobs": 352}
    with pytest.raises(WrongUsage, match="GLUE2ComputingShare"):
        site.parse_counts("dn: o=glue\nobjectClass: GLUE2Service\n")


class Slept(Exception):
    """Ends the loop after some rounds."""


def test_the_first_counts_and_each_failure_are_reported(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    class Client:
        def watermark(self, _site: str) -> int:
            return 7

        def advertise(self, _scope: str, _counts: Mapping[str, object]) -> dict[str, object]:
            return {}

    rounds: Iterator[int | None] = iter([5, 6, None, 7, 8])

    def count(_patience: float) -> Mapping[str, object]:
        if (jobs := next(rounds, -1)) is None:
            raise WrongUsage("squeue ended with status 1")
        if jobs < 0:
            raise Slept
        return {"CurrentJobs": jobs, "attempts_seen": ["a"] * 1000}

    monkeypatch.setattr(site.time, "sleep", lambda _seconds: None)
    client: Any = Client()
    with pytest.raises(Slept):
        site.advertise_repeatedly(client, "LCG.A.org", count, every=60)
    assert capsys.readouterr().err.splitlines() == [
        "pilotage: LCG.A.org: advertised CurrentJobs=5, next in 60 s",
        "pilotage: LCG.A.org was not advertised: squeue ended with status 1",
        "pilotage: LCG.A.org: advertised CurrentJobs=7, next in 60 s",
    ]


@pytest.mark.parametrize(
    ("counted", "advertised"),
    [
        ({"CurrentJobs": 3}, {"CurrentJobs": 3, "Load": 0.5}),
        ({"CurrentJobs": 3, "load": 7}, {"CurrentJobs": 3, "load": 7}),
    ],
    ids=["measured", "its own"],
)
def test_the_load_of_this_host_is_added_unless_the_command_states_its_own(
    monkeypatch: pytest.MonkeyPatch, counted: Mapping[str, object], advertised: Mapping[str, object]
) -> None:
    monkeypatch.setattr(measurements, "measure_load", lambda _shell: 0.5)
    assert site.add_load(lambda _patience: counted)(60) == advertised


def test_a_load_that_is_not_known_keeps_no_counts_from_being_advertised(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def fail(_shell: object) -> float:
        raise NoAnswer("sh gave no answer in 5 s")

    monkeypatch.setattr(measurements, "measure_load", fail)
    assert site.add_load(lambda _patience: {"CurrentJobs": 3})(60) == {"CurrentJobs": 3}
