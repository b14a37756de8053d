"""Queues of the resource tree in a director's file, and the batch systems of their CEs."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from pilotage.fabric.batch.htcondor import HTCondorSettings
from pilotage.fabric.director import configuration
from pilotage.fabric.director.configuration import DirectorFile, InvalidDirector

HTCONDOR = {
    "kind": "htcondor",
    "directory": "/var/lib/pilots/{ce}",
    "schedd": {"name": "{ce}", "collector": "{endpoint}", "token_file": "/etc/pilotage/ce.token"},
}
SLURM = {"kind": "slurm", "directory": "/shared/pilots"}


def read(selection: object, systems: dict[str, object], **more: Any) -> DirectorFile:
    told = {
        "url": "https://p.example.org",
        "name": "north",
        "vos": {"cms": {"token_file": "/t"}},
        "systems": systems,
        "queues": selection if isinstance(selection, list) else {"from_tree": selection, **more},
    }
    return configuration.read_file(told, "director.yaml")


GRID: Mapping[str, Mapping[str, object]] = {
    "OSG.A.us/ce1.a.us/one": {"CEType": "HTCondorCE", "Endpoint": "ce1.a.us:9000"},
    "OSG.A.us/ce2.a.us/two": {"CEType": "HTCondorCE", "Endpoint": "ce2.a.us:9619", "BatchQueue": "osg"},
    "LCG.B.ch/arc.b.ch/long": {"CEType": "AREX", "SubmitOptions": "ENV/PROXY 'ENV/GPU 1'"},
    "LCG.C.it/slurm/short": {"cetype": "Slurm", "CEQueueName": "s"},
}


def test_each_ce_gets_a_system_of_its_type_with_its_endpoint() -> None:
    told = read({"site": ["OSG.A.us", "LCG.C.it"]}, {"HTCondorCE": HTCONDOR, "slurm": SLURM})

    made = configuration.add_tree_queues(told, GRID, "director.yaml")

    assert [(each.queue, each.system, each.batch_queue, each.flags) for each in made.queues] == [
        ("OSG.A.us/ce1.a.us/one", "ce1.a.us", "htcondor", ()),
        ("OSG.A.us/ce2.a.us/two", "ce2.a.us", "osg", ()),
        ("LCG.C.it/slurm/short", "slurm", "s", ()),
    ]
    one = made.systems["ce1.a.us"]
    assert isinstance(one, HTCondorSettings)
    assert one.schedd is not None
    assert (one.schedd.name, one.schedd.pool, one.directory) == (
        *("ce1.a.us", "ce1.a.us:9000"),
        Path("/var/lib/pilots/ce1.a.us"),
    )
    assert set(made.systems) == {"ce1.a.us", "ce2.a.us", "slurm"}


def test_a_selection_takes_sites_and_ces_by_name() -> None:
    def chosen(selection: dict[str, object]) -> list[str]:
        made = configuration.add_tree_queues(read(selection, {"farm": SLURM}), GRID, "d")
        return [each.queue.rpartition("/")[2] for each in made.queues]

    assert chosen({"site": "osg.a.us"}) == ["one", "two"]
    assert chosen({"site": ["OSG.A.us", "LCG.C.it"]}) == ["one", "two", "short"]
    assert chosen({"site": "OSG.A.us", "ce": ["ce2.a.us"]}) == ["two"]


def test_a_system_called_as_the_ce_comes_before_that_of_its_type() -> None:
    own = {**SLURM, "directory": "/own"}
    told = read({"ce": "ce1.a.us"}, {"HTCondorCE": HTCONDOR, "ce1.a.us": own})

    [entry] = configuration.add_tree_queues(told, GRID, "d").queues

    assert (entry.system, entry.batch_queue) == ("ce1.a.us", None)


def test_a_listed_queue_replaces_what_the_tree_says_of_it() -> None:
    entry = {"queue": "OSG.A.us/ce1.a.us/one", "system": "farm", "cores": 2}
    told = read({"site": "OSG.A.us"}, {"farm": SLURM}, listed=[entry])

    made = configuration.add_tree_queues(told, GRID, "d")

    assert [(each.queue, each.cores) for each in made.queues] == [
        ("OSG.A.us/ce1.a.us/one", 2),
        ("OSG.A.us/ce2.a.us/two", 1),
    ]
    assert "cores" not in made.queues[1].model_fields_set  # it follows from the tree


def test_a_queue_of_the_tree_that_would_send_pilots_to_another_cluster_is_refused() -> None:
    queues = {"LCG.C.it/slurm/short": {"CEType": "Slurm", "SubmitOptions": "--qos=grid -M c2"}}

    with pytest.raises(InvalidDirector, match="slurm/short: -M: only the submission"):
        configuration.add_tree_queues(read({}, {"farm": SLURM}), queues, "d")


def test_wrong_parameters_of_one_site_take_no_pilots_from_another(caplog: pytest.LogCaptureFixture) -> None:
    queues = {**GRID, "LCG.D.de/ce/long": {"CEType": "Slurm", "SubmitOptions": "--qos='grid"}}
    told = read({"site": ["LCG.C.it", "LCG.D.de"]}, {"farm": SLURM})

    made = configuration.add_tree_queues(told, queues, "d")

    assert [each.queue for each in made.queues] == ["LCG.C.it/slurm/short"]
    assert "d: gets no pilots: LCG.D.de/ce/long: No closing quotation" in caplog.text
    with pytest.raises(InvalidDirector, match=r"LCG.D.de/ce/long: No closing quotation"):
        configuration.add_tree_queues(told, queues, "d", needs_all=True)


def test_a_ce_of_a_name_that_another_site_has_does_not_take_its_pilots(
    caplog: pytest.LogCaptureFixture,
) -> None:
    same = {"CEType": "HTCondorCE", "Endpoint": "ce1.a.us:9000"}
    other = {"CEType": "HTCondorCE", "Endpoint": "elsewhere.example.org:9619"}
    queues = {**GRID, "OSG.A.us/ce1.a.us/two": same, "X.Y.z/ce1.a.us/one": other}
    told = read({"ce": "ce1.a.us"}, {"HTCondorCE": HTCONDOR})

    made = configuration.add_tree_queues(told, queues, "d")

    assert [each.queue for each in made.queues] == ["OSG.A.us/ce1.a.us/one", "OSG.A.us/ce1.a.us/two"]
    system = made.systems["ce1.a.us"]
    assert isinstance(system, HTCondorSettings)
    assert system.schedd is not None
    assert system.schedd.pool == "ce1.a.us:9000"
    message = "X.Y.z/ce1.a.us/one: OSG.A.us/ce1.a.us/one has a CE of this name with another Endpoint"
    assert f"d: gets no pilots: {message}" in caplog.text


@pytest.mark.parametrize(
    ("selection", "systems", "message"),
    [
        (
            {"site": "X.Y.z"},
            {"farm": SLURM},
            'no queue of the tree that the VOs of the director may use is at {"site":["X.Y.z"]}',
        ),
        (
            {"site": "LCG.B.ch"},
            {"a": SLURM, "b": SLURM},
            "LCG.B.ch/arc.b.ch/long: there is no system for CEType AREX and none called arc.b.ch, only a, b",
        ),
        (
            {"site": "OSG.A.us", "ce": "ce1.a.us"},
            {"HTCondorCE": {**HTCONDOR, "schedd": {**HTCONDOR["schedd"], "name": "{endpoint}"}}},
            "ce1.a.us/one: ",
        ),  # type: ignore[dict-item]
    ],
)
def test_what_does_not_fit_is_named_with_the_queue(
    selection: dict[str, object], systems: dict[str, object], message: str
) -> None:
    told = read(selection, systems)
    with pytest.raises(InvalidDirector) as raised:
        configuration.add_tree_queues(told, GRID, "d")
    assert message in str(raised.value)


def test_a_file_that_lists_its_queues_stays_as_it_is() -> None:
    told = read([{"queue": "OSG.A.us/ce1.a.us/one", "system": "farm"}], {"farm": SLURM})
    assert configuration.add_tree_queues(told, GRID, "d") is told


@pytest.mark.parametrize(
    ("selection", "message"),
    [
        ({"sit": "A"}, "from_tree/sit: unknown setting, did you mean site?"),
        ([{"queue": "A/b/c"}], "queues/0/system: is needed"),
    ],
)
def test_errors_in_a_selection_name_their_place(selection: object, message: str) -> None:
    with pytest.raises(InvalidDirector) as raised:
        read(selection, {"farm": SLURM})
    assert message in str(raised.value)


@pytest.mark.parametrize(
    ("ce", "endpoint"), [("..", "ce.a.us:9619"), ("ce1.a.us", "x; touch y"), ("ce1.a.us", "-oProxyCommand=x")]
)
def test_names_and_endpoints_that_are_no_addresses_are_refused(ce: str, endpoint: str) -> None:
    slurm = {**SLURM, "directory": "/shared/{ce}", "ssh": {"host": "{endpoint}", "config": "/c"}}
    with pytest.raises(InvalidDirector, match="no CE that settings can be filled with"):
        configuration.add_tree_queues(
            read({}, {"farm": slurm}), {f"OSG.A.us/{ce}/one": {"Endpoint": endpoint}}, "d"
        )


@pytest.mark.parametrize(
    ("ce", "endpoint", "refused"),
    [
        ("ce1.a.us", "CE1.a.us:9619", None),
        ("ce1.a.us", "gate.b.ch/x", None),
        ("ce1.a.us", "evil.net:9619", "evil.net:9619"),
        ("ce1.a.us", "evil.net/ce1.a.us", "evil.net/ce1.a.us"),
        ("ce1.a.us", "ce1.a.us@evil.net", "ce1.a.us@evil.net"),
        ("ce1.a.us", "evil.net%2f.a.us", "evil.net%2f.a.us"),
        ("ce1.a.us", "[fe80::1]:9619", "[fe80::1]:9619"),
        ("ce1.a.us", "xa.us", "xa.us"),
        ("evil.net", "ce1.a.us", "evil.net"),  # the name of its schedd
    ],
)
def test_secrets_go_only_to_the_hosts_that_the_file_names(
    ce: str, endpoint: str, refused: str | None, caplog: pytest.LogCaptureFixture
) -> None:
    told = read({}, {"HTCondorCE": {**HTCONDOR, "endpoints": ["*.a.us", "gate.b.ch"]}})
    grid = {"OSG.A.us/ok.a.us/one": {"Endpoint": "ok.a.us"}, f"X.Y.z/{ce}/one": {"Endpoint": endpoint}}

    made = configuration.add_tree_queues(told, grid, "d")

    assert len(made.queues) == (2 if refused is None else 1)
    message = f"{refused!r} is none of the endpoints *.a.us, gate.b.ch of its system"
    assert (message in caplog.text) == (refused is not None)
    assert not configuration.list_open_systems(told)


@pytest.mark.parametrize(
    ("system", "is_open"),
    [
        (HTCONDOR, True),
        ({**HTCONDOR, "endpoints": ["*"]}, False),
        ({**HTCONDOR, "schedd": {**HTCONDOR["schedd"], "name": "a", "collector": "b"}}, False),  # type: ignore[dict-item]
        ({**SLURM, "directory": "/shared/{ce}"}, False),
    ],
)
def test_systems_that_send_secrets_wherever_the_tree_states_are_named(system: Any, *, is_open: bool) -> None:
    found = configuration.list_open_systems(read({}, {"one": system}))
    assert [each.partition(":")[0] for each in found] == ["systems/one"] * is_open


def test_a_director_whose_queues_are_listed_sends_no_secrets_elsewhere() -> None:
    assert not configuration.list_open_systems(read([{"queue": "A/b/c", "system": "one"}], {"one": HTCONDOR}))
