from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml

from pilotage.fabric.batch.settings import load_kind
from pilotage.fabric.gateway import configuration
from pilotage.fabric.gateway.configuration import GatewayFile, InvalidGateway
from tests.support.left_out import needs

PAGE = Path(__file__).parents[5] / "docs" / "site-admin" / "job-managers.md"


def said(**more: Any) -> dict[str, Any]:
    return {
        "url": "https://pilotage.example.org",
        "name": "gate",
        "token_file": "/etc/gateway.token",
        "vos": ["cms"],
        "directory": "/var/lib/gateway",
        "systems": {"farm": {"kind": "slurm", "directory": "/shared"}},
        "queues": [{"queue": "LCG.A.org/ce1/long", "system": "farm", "max_grid_jobs": 3}],
        **more,
    }


def test_the_queues_and_all_above_them_are_advertised_unless_others_are_named() -> None:
    queues = [{"queue": f"LCG.A.org/ce1/{name}", "system": "farm"} for name in ("long", "short")]
    told = configuration.read_file(said(queues=queues), "g.yaml")
    assert told.scopes() == (
        "LCG.A.org",
        "LCG.A.org/ce1",
        "LCG.A.org/ce1/long",
        "LCG.A.org/ce1/short",
    )
    assert configuration.read_file(said(advertise=["LCG.A.org/ce1"]), "g.yaml").scopes() == ("LCG.A.org/ce1",)


def test_what_a_site_says_of_a_job_type_reaches_its_handler() -> None:
    told = configuration.read_file(said(job_types={"montecarlo": {"cpu_per_event": 2.5}}), "g.yaml")
    limits = told.job_types["montecarlo"]
    assert (limits.cpu_per_event, limits.max_cpu_per_job) == (2.5, None)


@pytest.mark.parametrize(
    ("more", "message"),
    [
        ({"name": "gate.1"}, "name: 'gate.1' is not allowed, allowed is a text that matches ^"),
        ({"url": "http://h:99999"}, "url: 'http://h:99999' is not a service address such as"),
        ({"poling_time": 5}, "poling_time: unknown setting, did you mean polling_time?"),
        ({"vos": []}, "vos: [] is not allowed, allowed is a list of 1 or more"),
        ({"directory": "state"}, "directory: state is not absolute"),
        ({"job_types": {"montecarlo": {"cpu_per_evnt": 1}}}, "did you mean cpu_per_event?"),
        ({"retries": {"tries": 0}}, "retries/tries: 0 is not allowed, allowed is at least 1"),
        (
            {"queues": [{"queue": "A/b/c", "system": "farm", "max_grid_job": 2}]},
            "unknown setting, did you mean max_grid_jobs?",
        ),
        (
            {"queues": [{"queue": "A/b/c", "system": "fram"}]},
            "there is no system fram, only farm, did you mean farm?",
        ),
        ({"isolation": "apptainer"}, "isolation apptainer: image goes with apptainer"),
        ({"image": "a.sif"}, "isolation strongest: image goes with apptainer"),
        ({"isolation": "command"}, "isolation command: needs isolation_command"),
        ({"isolation_command": "bwrap --"}, "isolation strongest: takes no isolation_command"),
        (
            {"isolation": "userns", "isolation_command": "bwrap --"},
            "isolation userns: takes no isolation_command",
        ),
        ({"advertise": ["LCG.A.org/ce2"]}, "advertise/0: LCG.A.org/ce2: none of the queues is there"),
    ],
)
def test_what_is_wrong_is_told_with_its_place(more: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidGateway) as error:
        configuration.read_file(said(**more), "g.yaml")
    assert message in str(error.value)
    assert "g.yaml" in str(error.value)


def test_every_setting_is_documented() -> None:
    text = PAGE.read_text()
    example = text[text.index("```yaml") : text.index("```\n\nSystems")]
    missing = [
        name for name in GatewayFile.model_fields if f"`{name}`" not in text and f"{name}:" not in example
    ]
    assert missing == []


def test_the_example_of_the_page_is_taken() -> None:
    text = PAGE.read_text()
    example = text[text.index("```yaml") + 7 : text.index("```\n\nSystems")]
    told = configuration.read_file(yaml.safe_load(example), "page.yaml")
    assert told.job_types["montecarlo"].cpu_per_event == 120


@needs("arc")
def test_a_ce_that_carries_files_needs_no_shared_directory() -> None:
    arc = {"farm": {"kind": "arc", "ce": {"url": "https://ce/arex", "token_file": "/t"}}}
    assert configuration.read_file(said(systems=arc), "g.yaml").systems["farm"].job_directory is None


@needs("arc")
def test_a_kind_of_others_that_has_neither_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    without = replace(load_kind("arc"), carries_files=False)
    monkeypatch.setattr(configuration, "load_kind", lambda _: without)
    arc = {"farm": {"kind": "arc", "ce": {"url": "https://ce/arex", "token_file": "/t"}}}
    with pytest.raises(InvalidGateway, match="systems/farm/kind: a job manager needs a directory"):
        configuration.read_file(said(systems=arc), "g.yaml")
