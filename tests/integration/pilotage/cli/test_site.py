"""`pilotage site …` against a real service, each command as it is typed."""

import json
import threading
from pathlib import Path
from typing import Any

import httpx
import pytest

from examples.servers.slurm import Slurm
from pilotage.cli import output
from pilotage.cli.commands import site
from pilotage.cli.errors import WrongUsage
from pilotage.client.api import ServiceClient
from tests.support import wait
from tests.support.commands import Run, run, send_to
from tests.support.service import Service

__all__ = ["run"]

SITE = "LCG.A.org"
THROTTLE = "Throttle: {Policy: brokering, MaxJobs: 5, MaxSubmittingJobs: 2}"
LIMITS = """
    JobScheduling:
      RunningLimit:
        LCG.A.org: {JobType: {Merge: 1, User: {count: 7, cores: 90}, Stage: {cores: 4}}}
        AllSites: {VO: {dune: {Curb: 10, Max: 20, Interval: 30}}}
      MatchingDelay: {LCG.A.org: {JobGroup: {g: 30}, Burst: {JobGroup: {g: 2}}}}
"""


@pytest.fixture
def limited(service: Service, config_text: str) -> Service:
    text = config_text.replace("VO: [cms, dune]", f"VO: [cms, dune]\n      {THROTTLE}")
    service.configure(text.replace("  Defaults:", f"  Defaults:{LIMITS.rstrip()}"))
    jobs = [{"Executable": "x", "JobType": "Merge"} for _ in range(3)]
    service.user().post("/api/v1/jobs", json={"jobs": jobs}).raise_for_status()
    return service


@pytest.fixture
def gateway(limited: Service) -> httpx.Client:
    return limited.as_role("gateway", vo="cms", site=SITE)


@pytest.fixture
def at_site(limited: Service, run: Run, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Run:
    """Runs `pilotage site …` as the admin of a site."""

    def command(*words: str, site: str = SITE) -> tuple[int, str, str]:
        send_to(limited, tmp_path / "nobody", monkeypatch, "site_admin", site=site)
        return run("site", *words)

    return command


def ask(gateway: httpx.Client, count: int = 5) -> Any:
    body = {"Site": SITE, "GridCE": "ce1", "Queue": "long", "CPUTime": 10**6, "count": count}
    return gateway.post("/api/v1/matcher/requestJob", json=body).json()


def test_a_site_advertises_by_hand_and_shows_how_it_stands(at_site: Run, gateway: httpx.Client) -> None:
    said = at_site("advertise", SITE, "CurrentJobs=1", "CurrentSubmittingJobs=0")
    assert said == (0, f"{SITE}: advertised\n", "")
    assert len(ask(gateway)["matches"]) == 1
    status, out, _ = at_site("show", SITE, "--json")
    [throttle] = json.loads(out)["throttles"]
    assert (status, throttle["reserved"], throttle["counters"]["CurMatches"]) == (0, 1, 2)
    status, out, _ = at_site("list", "--json")
    assert (status, [each["site"] for each in json.loads(out)["sites"]]) == (0, [SITE, "LCG.B.org"])


def test_a_site_admin_who_lists_jobs_is_referred_to_their_numbers(at_site: Run, run: Run) -> None:
    at_site("list")  # sets the token
    for words, status in (["job", "list"], 1), (["job", "list", "--by", "vo,status"], 0):
        ended, _, err = run(*words)
        assert ended == status
        assert ("`pilotage job list --by vo,status` counts the jobs at your site" in err) is bool(status)


def test_an_excluded_node_is_shown_and_readmitted(at_site: Run, limited: Service) -> None:
    assert at_site("nodes", SITE) == (0, f"{SITE}: no node is excluded\n", "")
    director = limited.as_role("director", vo="cms")
    for number in range(3):
        stamp = f"north.any.{number}"
        body = {"stamp": stamp, "queue": f"{SITE}/ce1/long"}
        director.post("/api/v1/pilots", json=body).raise_for_status()
        pilot = limited.as_role("pilot", vo="cms", queue=body["queue"], stamp=stamp)
        pilot.post(f"/api/v1/pilots/{stamp}/node", json={"node": "n1"}).raise_for_status()
        end = {"status": "Failed", "reason": "no space left", "host_trouble": True}
        pilot.post(f"/api/v1/pilots/{stamp}/status", json=end).raise_for_status()

    status, out, _ = at_site("nodes", SITE)
    assert status == 0
    assert all(word in out for word in ("n1", "cms", "no space left"))
    assert [each["node"] for each in json.loads(at_site("nodes", SITE, "--json")[1])["nodes"]] == ["n1"]
    assert at_site("readmit", SITE, "n1", site="LCG.B.org")[0] == 1
    assert at_site("readmit", SITE, "n1") == (0, f"n1 of {SITE}: readmitted\n", "")
    assert at_site("nodes", SITE) == (0, f"{SITE}: no node is excluded\n", "")
    status, _, said = at_site("readmit", SITE, "n1")
    assert (status, "excluded node n1 of LCG.A.org does not exist" in said) == (1, True)


def test_whole_numbers_are_shown_as_such(at_site: Run) -> None:
    at_site("advertise", SITE, "CurrentJobs=1", "CurrentSubmittingJobs=0")
    status, out, _ = at_site("show", SITE, "--json")
    [throttle] = json.loads(out)["throttles"]
    numbers = {**throttle["counters"], **throttle["limits"]}
    assert (status, numbers["CurMatches"], numbers["MaxJobs"]) == (0, 1, 5)
    assert {type(each) for each in numbers.values()} == {int}
    shown = at_site("show", SITE)[1]
    assert "1.0" not in shown
    assert "Counters" in shown
    assert not [word for word in ("Gauges", "As of", "Scope") if word in shown]


def test_limits_and_delays_are_shown_with_what_is_used(at_site: Run, gateway: httpx.Client) -> None:
    at_site("advertise", SITE, "CurrentJobs=0", "CurrentSubmittingJobs=0")
    assert len(ask(gateway)["matches"]) == 1
    assert ask(gateway)["reason"] == "limits"
    status, out, _ = at_site("limits", SITE, "--json")
    shown = json.loads(out)["limits"]
    by_value = {each["value"]: each for each in shown if each["scope"] == SITE}
    running, delay = by_value["Merge"], by_value["g"]
    assert status == 0
    assert (running["value"], running["most"], running["there"], running["full"]) == ("Merge", 1, 1, True)
    bounds = [
        [by_value[value][name] for name in ("most", "most_cores", "cores")] for value in ("User", "Stage")
    ]
    assert bounds == [[7, 90, 0], [None, 4, 0]]
    assert (delay["value"], delay["seconds"], delay["burst"], delay["full"]) == ("g", 30.0, 2, False)
    _, out, _ = at_site("limits", SITE)
    for word in (
        "JobType Merge",
        "1 at a time",
        "1 there",
        "full",
        "one in 30 s",
        "room for 1",
        "AllSites",
        "20 at a time, from 10 on",
        "7 and 90 cores at a time",
        "4 cores at a time",
        "0 with 0 cores there",
    ):
        assert word in out


def test_a_site_is_banned_and_allowed_again(at_site: Run, gateway: httpx.Client) -> None:
    at_site("advertise", SITE, "CurrentJobs=0", "CurrentSubmittingJobs=0")
    status, out, _ = at_site("ban", SITE, "--reason", "power cut", "--until", "2999-01-01T08:00", "--json")
    assert (status, json.loads(out)["ban"]["reason"]) == (0, "power cut")
    answer = ask(gateway)
    assert (answer["matches"], answer["reason"]) == ([], "banned")
    assert answer["retry_after"] > 0
    listed = next(line for line in at_site("list")[1].splitlines() if SITE in line)
    assert "no" in listed.split()
    assert "power cut" in listed
    assert "power cut" in at_site("limits", SITE)[2]
    assert at_site("allow", SITE) == (0, f"{SITE}: allowed\n", "")
    assert len(ask(gateway)["matches"]) == 1


@pytest.mark.parametrize(
    ("words", "status", "said"),
    [
        (("limits", "LCG.A.orf"), 1, "LCG.A.org"),
        (("ban", "LCG.B.org", "--reason", "x"), 1, "LCG.B.org"),
        (("ban", SITE), 2, "--reason"),
        (("show", f"{SITE}/ce1"), 2, "allowed is the site alone, LCG.A.org"),
        (("ban", f"{SITE}/ce1/long"), 2, "allowed is the site alone, LCG.A.org"),
        (("advertise", SITE), 2, "K=V"),
        (("advertise", SITE, "CurrentJobs"), 2, "K=V"),
        (("advertise", SITE, "CurrentJobs=1", "--watch", "true"), 2, "K=V"),
        (("advertise", SITE, "currentjobs=1"), 2, "CurrentJobs"),
        (("advertise", SITE, "CurrentJobs=1", "CurrentJobs=2"), 2, "CurrentJobs is given 2 times"),
        (("advertise", SITE, "CurMatches=CurMatches + 1"), 2, "refers to itself"),
        (("advertise", SITE, "CurMatches=1 + MY.curmatches"), 2, "refers to itself"),
        (("advertise", SITE, "Requirements=CurMatches < 5 && my.requirements"), 2, "refers to itself"),
    ],
)
def test_what_is_wrong_is_told_in_a_line(
    at_site: Run, words: tuple[str, ...], status: int, said: str
) -> None:
    ended, out, err = at_site(*words)
    assert (ended, out, len(err.splitlines())) == (status, "", 1), err
    assert said in err


def test_a_name_like_a_counter_is_taken_and_doubted(at_site: Run, gateway: httpx.Client) -> None:
    said = at_site("advertise", SITE, "Curentjobs=3", "Weather=5")
    doubt = "Curentjobs: is used only in expressions, did you mean CurrentJobs?"
    assert said[:2] == (0, f"{SITE}: advertised\n")
    first, second = said[2].splitlines()
    assert first == f"pilotage: {doubt}"
    assert second.startswith("pilotage: Weather: nothing reads it, no job can require it")
    [throttle] = json.loads(at_site("show", SITE, "--json")[1])["throttles"]
    assert throttle["advertisement"] == {"Curentjobs": 3, "Weather": 5}
    assert ask(gateway)["reason"] == "throttled"


def test_values_that_are_measured_everywhere_are_not_doubted(at_site: Run) -> None:
    assert at_site("advertise", SITE, "Load=3", "SubmitErrors=0", "SubmitSeconds=0.2") == (
        0,
        f"{SITE}: advertised\n",
        "",
    )


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["false"], "false ended with status 1"),
        (
            ["sh", "-c", "echo no such batch system >&2; exit 3"],
            "sh ended with status 3: no such batch system",
        ),
        (["sh", "-c", "kill -9 $$"], "sh ended by signal 9"),
        (["no-such-command"], "no command no-such-command"),
        (["/etc"], "/etc cannot be run: Permission denied"),
        (["sleep", "600"], "sleep took longer than 1 s and was ended"),
        (["printf", "\\377"], "printf prints no UTF-8 text"),
        (["echo", "{broken"], "no JSON object"),
    ],
)
def test_what_a_watched_command_does_wrong_is_told_in_our_words(
    limited: Service, words: list[str], told: str
) -> None:
    patience = 0.1 if words[0] == "sleep" else 300.0
    with ServiceClient(limited.url, limited.token("gateway", vo="cms", site=SITE)) as client:
        with pytest.raises(WrongUsage) as refused:
            site.advertise_once(client, SITE, site.count_by_command(words), patience=patience)
        assert told in str(refused.value)
        assert client.site(SITE)["throttles"][0]["advertisement"] is None


def test_the_watermark_is_fetched_before_a_slow_command_counts(
    limited: Service, gateway: httpx.Client, tmp_path: Path
) -> None:
    with ServiceClient(limited.url, limited.token("gateway", vo="cms", site=SITE)) as client:
        client.advertise(SITE, {"CurrentJobs": 0, "CurrentSubmittingJobs": 0})
        [match] = ask(gateway, 1)["matches"]
        counts, go = tmp_path / "counts", tmp_path / "go"
        counting = f"touch {counts}; until test -e {go}; do sleep 0.02; done"
        printing = "echo CurrentJobs=0 CurrentSubmittingJobs=0 | tr ' ' '\\n'"
        words = ["sh", "-c", f"{counting}; {printing}"]
        watching = threading.Thread(
            target=site.advertise_once,
            args=(client, SITE, site.count_by_command(words)),
            kwargs={"patience": 300.0},
        )
        watching.start()
        wait.until(counts.exists)
        # It counted already: this one is not in what it will print.
        gateway.post(f"/api/v1/leases/{match['lease']}/start", json={}).raise_for_status()
        go.touch()
        watching.join(300)
        assert client.site(SITE)["throttles"][0]["reserved"] == 1
        site.advertise_once(client, SITE, site.count_by_command(words), patience=300.0)
        assert client.site(SITE)["throttles"][0]["reserved"] == 0


@pytest.mark.debian("slurm")
def test_the_jobs_that_wait_in_a_real_slurm_close_its_site(
    service: Service, config_text: str, slurm: Slurm, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    text = config_text.replace(
        "VO: [cms, dune]", "VO: [cms, dune]\n      Throttle: {Policy: pending, MaxPendingJobs: 3}"
    )
    service.configure(text)
    service.user().post("/api/v1/jobs", json={"jobs": [{"Executable": "x"}] * 5}).raise_for_status()
    for name, value in slurm.environment.items():
        monkeypatch.setenv(name, value)
    script = tmp_path / "sleep.sh"
    script.write_text("#!/bin/sh\nexec sleep 600\n")
    try:
        before = site.choose_counter("slurm", (), None)(60)["CurrentPendingJobs"]
        for queues in ("long", "long,short"):  # one that waits for two queues is one job
            slurm.ask("sbatch", "--hold", f"--partition={queues}", "--output=/dev/null", str(script))
        with ServiceClient(service.url, service.token("site_admin", site=SITE)) as client:
            site.advertise_once(client, SITE, site.choose_counter("slurm", (), None), patience=300)
            [throttle] = client.site(SITE)["throttles"]
            assert throttle["advertisement"]["CurrentPendingJobs"] == int(str(before)) + 2
            assert len(ask(service.as_role("gateway", vo="cms", site=SITE))["matches"]) == 3 - 2 - int(
                str(before)
            )
            assert ask(service.as_role("gateway", vo="cms", site=SITE))["reason"] == "throttled"
            with pytest.raises(WrongUsage, match="no queue Lnog, there are long, short"):
                site.choose_counter("slurm", ["Lnog"], None)(60)
    finally:
        slurm.ask("scancel", "--me")


def test_the_job_types_of_gateways_are_shown(at_site: Run, gateway: httpx.Client) -> None:
    advertised = {"JobTypes": ["generic", "montecarlo"]}
    gateway.post(f"/api/v1/sites/{SITE}/ces/ce1/advertisement", json=advertised).raise_for_status()
    status, out, _ = at_site("show", SITE)
    assert status == 0
    [line] = [each for each in out.splitlines() if "montecarlo" in each]
    assert line.split()[:3] == [f"{SITE}/ce1", "generic,", "montecarlo"]


def test_a_counter_that_cannot_be_opened_is_wrong_usage(tmp_path: Path) -> None:
    with pytest.raises(WrongUsage, match="needs a dialect"):
        site.choose_counter("command", (), None)
    with pytest.raises(WrongUsage, match="are for a batch system"):
        site.choose_counter("./count", ["long"], None)


def test_a_downtime_stands_in_the_lists_of_its_site_and_of_all_sites(at_site: Run, run: Run) -> None:
    at_site("list")  # sets the token
    for until, reason in (("2100-01-02T00:00Z", "cooling"), ("2100-01-01T00:00Z", "disks")):
        times = ("--from", "2020-01-01T00:00Z", "--until", until)
        ended, _, err = run("downtime", "add", SITE, *times, "--reason", reason)
        assert ended == 0, err
    status, out, err = run("downtime", "list", SITE, "--json")
    assert (status, err) == (0, "")
    assert {each["reason"] for each in json.loads(out)["downtimes"]} == {"cooling", "disks"}
    assert run("downtime", "list", "LCG.B.org", "--json")[0] == 0
    status, _, err = run("downtime", "list", "LCG.A.orgg")
    assert (status, "did you mean LCG.A.org" in err) == (1, True)
    _, out, _ = at_site("list")
    [here] = [line for line in out.splitlines() if SITE in line]
    assert "\tno\t" in here
    assert f"downtime until {output.local_time('2100-01-02T00:00:00Z')}" in here
    assert "cooling" in here
    [other] = [line for line in out.splitlines() if "LCG.B.org" in line]
    assert "downtime" not in other
