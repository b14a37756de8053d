from typing import Any

import pytest

from pilotage.fabric.batch.dialect import dialect
from pilotage.fabric.batch.dialect.command import DialectSettings
from pilotage.fabric.director import configuration
from pilotage.fabric.director.configuration import InvalidDirector
from pilotage.fabric.director.targets import DirectorOptions, DirectorTargets, QueueTarget, TargetGroup
from pilotage.fabric.pilot import arguments

FARM = {"kind": "slurm", "directory": "/shared"}
HERE = {"kind": "local", "directory": "/here", "cores": 2, "memory": 4000}


def broker(**more: Any) -> dict[str, Any]:
    return {"system": "farm", "queues": {"LCG.A.org/ce1/long": "long", "LCG.A.org/ce1/short": "s"}, **more}


def brokered(**more: Any) -> dict[str, Any]:
    return {"brokers": {"wms": broker(**more)}}


def queue(name: str = "A/b/c", system: str = "farm") -> dict[str, Any]:
    return {"queue": name, "system": system}


def said(**more: Any) -> dict[str, Any]:
    return {
        "url": "https://pilotage.example.org",
        "name": "north",
        "vos": {"cms": {"token_file": "/etc/cms.token"}},
        "systems": {"farm": FARM},
        "queues": [{"queue": "LCG.A.org/ce1/long", "system": "farm", "flags": ["--qos=grid"]}],
        **more,
    }


SSH = {"host": "head", "user": "grid", "key": "/k", "known_hosts": "/h"}
SCHEDD = {"name": "ce01.x.org", "token_file": "/t"}


def pbs() -> dict[str, Any]:
    return dict(dialect.shipped_content("pbs"))


def test_a_site_changes_what_differs_of_a_shipped_dialect() -> None:
    farm = {"kind": "pbs", "directory": "/shared", "dialect": {"listing": {"command": ["qstat", "-f", "-w"]}}}

    system = configuration.read_file(said(systems={"farm": farm}), "d.yaml").systems["farm"]

    assert isinstance(system, DialectSettings)
    assert system.dialect.listing.command == ("qstat", "-f", "-w")
    assert system.dialect.listing.states["Q"] == "waiting"


def test_a_batch_queue_is_called_as_the_queue_unless_it_is_named() -> None:
    [queue] = configuration.read_file(said(), "d.yaml").queues

    assert (queue.to_target().batch_queue, queue.to_target().flags) == ("long", ("--qos=grid",))


def farm(kind: str, **more: object) -> dict[str, Any]:
    return {"systems": {"farm": {"kind": kind, "directory": "/a", **more}}}


@pytest.mark.parametrize(
    ("more", "message"),
    [
        ({"name": "north.1"}, "name: 'north.1' is not allowed, allowed is a text that matches ^"),
        ({"url": "http://h:99999"}, "url: 'http://h:99999' is not a service address such as"),
        ({"pilot_url": "pilotage"}, "pilot_url: 'pilotage' is not a service address such as"),
        ({"poling_time": 5}, "poling_time: unknown setting, did you mean polling_time?"),
        ({"polling_time": 0}, "polling_time: 0 is not allowed, allowed is more than 0"),
        ({"token_file": "t"}, "token_file: is no setting here, it belongs at vos/…/token_file"),
        ({"batch_queue": "x"}, "batch_queue: is no setting here, it belongs at queues/…/batch_queue"),
        ({"vos": {}}, "vos: {} is not allowed, allowed is a mapping of 1 or more"),
        ({"queues": []}, "queues, brokers: one of them has to state where pilots are sent"),
        ({"queues": [queue("long")]}, "queues/0/queue: 'long' is not allowed, allowed is a text that"),
        ({"queues": [queue(system="fram")]}, "there is no system fram, only farm, did you mean farm?"),
        ({"queues": [queue()] * 2}, "queues/1/queue: A/b/c is named before"),
        (farm("slurm", directory="jobs"), "directory: jobs is not absolute"),
        (farm("local"), "systems/farm/cores: is needed (d.yaml)\nsystems/farm/memory: is needed"),
        (farm("slrum"), "systems/farm/kind: no such kind of batch system is installed, only "),
        (farm("command"), "systems/farm/dialect: is needed"),
        (
            farm("htcondor", dialect=pbs()),
            "systems/farm/dialect: only systems of the kind command, gridengine, lsf, pbs, slurm have such",
        ),
        (
            farm("pbs", dialect={"listing": {"comand": []}}),
            "systems/farm/dialect/listing/comand: unknown setting, did you mean command?",
        ),
        (
            farm("local", cores=1, memory=1, ssh=SSH),
            "systems/farm/ssh: only systems of the kind command, gridengine, htcondor, lsf, pbs, slurm have",
        ),
        (farm("htcondor", schedd={"name": "ce01.x.org"}), "systems/farm/schedd/token_file: is needed"),
        (
            farm("slurm", schedd=SCHEDD),
            "systems/farm/schedd: only systems of the kind htcondor have such a setting",
        ),
        (
            farm("htcondor", schedd=SCHEDD, ssh=SSH),
            "schedd, ssh: a remote queue manager is entered from this host, not over SSH",
        ),
        ({"brokers": {"b": broker(flags=["-Mc2"])}}, "brokers/b/flags: -Mc2: only the submission"),
        (
            {"brokers": {"w.ms": broker()}},
            "brokers/w.ms/[key]: 'w.ms' is not allowed, allowed is a text that",
        ),
        (brokered(system="fram"), "brokers/wms/system: there is no system fram, only farm"),
        (brokered(queues={"A/b/c": "x", "A/b/d": "x"}), "two have the same batch queue"),
        (
            brokered(queues={"A/b/c": "x,y"}),
            "brokers/wms/queues/A/b/c: 'x,y' is not allowed, allowed is a text that",
        ),
        (brokered(vos=["dune"]), "brokers/wms/vos: dune is not in vos"),
        (
            {**brokered(system="here"), "systems": {"farm": FARM, "here": HERE}},
            "brokers/wms/entry: here takes no list of queues; state which one takes all pilots",
        ),
    ],
)
def test_what_is_wrong_is_told_with_its_place(more: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidDirector) as refused:
        configuration.read_file(said(**more), "d.yaml")

    assert message in str(refused.value)
    assert "d.yaml" in str(refused.value)


def test_a_broker_is_given_those_of_its_queues_that_would_do_or_its_entry() -> None:
    brokers = {"wms": broker(cores=4, vos=["CMS"]), "router": broker(entry="grid")}
    told = configuration.read_file(said(queues=[], brokers=brokers), "d.yaml").brokers
    options = DirectorOptions(name="north")
    sites = DirectorTargets(queues={}, systems={}, options=options, script=lambda _: "", brokers=told)

    def door(broker: str, *queues: str) -> QueueTarget:
        return sites.find_target(TargetGroup(vo="cms", queues=queues, broker=broker))

    both = ("LCG.A.org/ce1/long", "LCG.A.org/ce1/short")
    assert door("wms", *both).batch_queue == "long,s"
    assert door("wms", *both[1:]).batch_queue == "s"
    assert (door("wms", *both).resources.cores, told["wms"].vos) == (4, {"cms"})
    assert door("router", *both[1:]).batch_queue == "grid"


def test_all_problems_are_told_at_once() -> None:
    with pytest.raises(InvalidDirector) as refused:
        configuration.read_file(said(polling_time=0, max_pilots_per_cycle=0), "d.yaml")

    assert {problem.path for problem in refused.value.problems} == {"polling_time", "max_pilots_per_cycle"}


def test_a_file_without_settings_is_refused() -> None:
    with pytest.raises(InvalidDirector, match="holds no settings by name"):
        configuration.read_file(None, "d.yaml")


@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        (["--max-emty=3"], "unrecognized arguments: --max-emty=3"),
        (["--max-empty=many"], "argument --max-empty: "),
        (["--isolation=jail"], "argument --isolation: "),
        (["--help"], "only shows help"),
    ],
)
def test_arguments_that_no_pilot_would_understand_are_refused(words: list[str], complaint: str) -> None:
    with pytest.raises(InvalidDirector, match=f"pilot: {complaint}"):
        configuration.read_file(said(pilot=words), "d.yaml")


def test_former_names_of_settings_go_on_working() -> None:
    former = {"every": 7, "at_once": 3, "soon": 5, "gone": {"listings": 4, "seconds": 9}, "task": 8}
    new = dict(
        zip(
            ("polling_time", "max_pilots_per_cycle", "short_job", "lost_after", "system_timeout"),
            former.values(),
            strict=True,
        )
    )

    assert configuration.read_file(said(**former), "d") == configuration.read_file(said(**new), "d")
    with pytest.raises(
        InvalidDirector, match="every: the former name of polling_time, which is there as well"
    ):
        configuration.read_file(said(every=7, polling_time=8), "d")


def test_pilots_hide_directories_and_secrets_of_their_director_and_the_file_wins() -> None:
    ssh = {**SSH, "key": "/etc/pilotage/ssh/id"}
    schedd = {"name": "ce01.x.org", "token_file": "/etc/condor/ce.token"}
    systems = {
        "farm": {**FARM, "ssh": ssh},
        "here": HERE,
        "ce": {"kind": "htcondor", "directory": "/var/lib/ce", "schedd": schedd},
    }
    vos = {"cms": {"token_file": "/etc/pilotage/cms.token"}, "atlas": {"token_file": "/etc/atlas.token"}}
    told = configuration.read_file(said(systems=systems, vos=vos, pilot=["--isolation=none"]), "d.yaml")

    assert configuration.isolation_words(told) == (
        "--isolation=strongest",
        "--hide=/shared",
        "--hide=/here",
        "--hide=/var/lib/ce",
        "--hide=/etc/pilotage",  # a token that is replaced would not stay hidden
        "--hide=/etc/atlas.token",
        "--hide=/etc/pilotage/ssh",
        "--hide=/etc/condor",
    )
    words = (*configuration.isolation_words(told), *told.pilot)
    assert arguments.find_isolation(words) == "none"


@pytest.mark.parametrize(
    ("words", "risks"),
    [
        ([], []),
        (["--isolation=userns"], []),
        (["--isolation=apptainer", "--image=x"], []),
        (
            ["--isolation=none"],
            ["pilot: --isolation=none: each job can do all that the account of its pilot may"],
        ),
        (
            ["--isolation=command"],
            ["pilot: --isolation=command: jobs can read secrets of pilots unless it hides /shared"],
        ),
    ],
)
def test_isolation_that_is_weaker_or_not_known_is_a_risk(words: list[str], risks: list[str]) -> None:
    told = configuration.read_file(said(pilot=words), "d.yaml")
    assert configuration.list_isolation_risks(told) == risks


@pytest.mark.parametrize(
    ("more", "shared"),
    [
        ({}, ["cms, lhcb"]),
        ({"queues": [], "brokers": {"b": broker()}}, ["cms, lhcb"]),
        ({"queues": [], "brokers": {"b": broker(vos=["CMS"])}}, []),
        ({"queues": [], "brokers": {"b": broker(vos=["cms"]), "c": broker(vos=["lhcb"])}}, ["cms, lhcb"]),
        ({"vos": {"cms": {"token_file": "/t"}}}, []),
    ],
)
def test_systems_where_vos_share_an_account_are_named(more: dict[str, Any], shared: list[str]) -> None:
    vos = {"cms": {"token_file": "/etc/a/1"}, "lhcb": {"token_file": "/etc/a/2"}}
    told = configuration.read_file(said(**{"vos": vos, **more}), "d.yaml")
    found = configuration.list_shared_accounts(told)
    assert [each.partition(" of ")[2].partition(" have ")[0] for each in found] == shared
