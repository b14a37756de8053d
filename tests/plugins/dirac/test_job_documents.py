"""Jobs and pilots of DIRAC as documents of the match-making specification, and back."""

import json
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cs_config import validate
from cs_config.options.operations import options_for
from matcher.request import match_request, node_document
from optimizers.description.description import parse_description
from pilotage.cli import application
from pilotage.plugins.dirac.documents import job_documents, pilot_documents
from requirements.errors import InvalidJob
from requirements.requirement_class import RequirementClass
from taskqueue.task_queues.class_derivation import CLASSIFIED, derive_class
from tests.support.factories.specification_scenarios import read_scenarios

OPTIONS = options_for(validate.parse("Registry: {VO: {cms: {}}}\n", version=1), "cms")


def derive(description: Mapping[str, Any]) -> RequirementClass:
    read = parse_description(dict(description), OPTIONS)
    return derive_class(
        "cms", {name: getattr(read, name) for name in CLASSIFIED if read.states(name)}, OPTIONS
    )


@pytest.mark.parametrize(
    ("jdl", "fields"),
    [
        ("CPUTime = 5000", {"cpu_work_db12": 5000}),
        ("NumberOfProcessors = 4", {"cpu": {"num_cores": {"min": 4, "max": 4}}}),
        ('Tags = {"8Processors", "MultiProcessor"}', {"cpu": {"num_cores": {"min": 8, "max": 8}}}),
        ('Tags = "MultiProcessor"', {"cpu": {"num_cores": {"min": 2}}}),
        (
            'MinNumberOfProcessors = 2; MaxNumberOfProcessors = 8; Tags = "MultiProcessor"',
            {"cpu": {"num_cores": {"min": 2, "max": 8}}},
        ),
        (
            "MinRAM = 1000; MaxRAM = 3000",
            {"cpu": {"ram_mb": {"request": {"overhead": 1000}, "limit": {"overhead": 3000, "per_core": 0}}}},
        ),
        (
            'Platform = "x86_64_v3-el9"',
            {"cpu": {"architecture": {"name": "x86_64", "level": "x86-64-v3"}}, "tags": "os:el9"},
        ),
        ('Platform = "x86_64-any"', {"cpu": {"architecture": {"name": "x86_64", "level": "x86-64-v1"}}}),
        (
            'Platform = "armv8.1_a-any"',
            {"cpu": {"architecture": {"name": "aarch64", "profile": "armv8.1-a"}}},
        ),
        ('Tags = "GPU"', {"gpu": {"count": {"min": 1}, "vendor": "nvidia", "arch": "sm_10"}}),
        ('Tags = {"b", "a"}; TagExpression = "c | d"', {"tags": "b & a & (c | d)"}),
        ('WallTime = 60; GPURuntime = "12.4"', {"wall_time": 60, "gpu": {"min_runtime_version": "12.4"}}),
    ],
)
def test_keywords_of_dirac_have_their_fields(jdl: str, fields: Mapping[str, object]) -> None:
    found = job_documents.read_jdl(f"[ {jdl} ]")
    assert found["requirements"] == fields
    assert job_documents.read_jdl(job_documents.write_jdl(found)) == found


def test_what_has_no_field_stays_a_keyword() -> None:
    found = job_documents.read_jdl(
        '[Executable = "x"; Site = ANY; BannedSites = {A, B}; Tags = WholeNode; Platform = "centos";'
        "Mine = {1, 2}]"
    )
    assert found == {
        "Executable": "x",
        "JobType": "User",
        "Platform": "centos",
        "Tags": ["WholeNode"],
        "Mine": ["1", "2"],
        "requirements": {},
        "banned_sites": ["A", "B"],
    }
    assert job_documents.read_jdl(job_documents.write_jdl(found)) == found


@pytest.mark.parametrize("scenario", read_scenarios(), ids=lambda each: each.name)
def test_a_document_comes_back_with_the_same_requirements(scenario: Any) -> None:
    jdl = job_documents.write_jdl(scenario.description)
    again = job_documents.read_jdl(jdl)
    assert derive(again) == derive({**scenario.description, "JobType": "User"})
    assert job_documents.write_jdl(again) == jdl


NAMES = st.lists(st.sampled_from(["a", "b:c", "cvmfs:lhcb.cern.ch"]), unique=True)
KEYWORDS = st.fixed_dictionaries(
    {},
    optional={
        "CPUTime": st.integers(1, 10**7),
        "NumberOfProcessors": st.integers(1, 128),
        "MinRAM": st.integers(1, 10**6),
        "Platform": st.sampled_from(["x86_64-el9", "x86_64_v2-any", "armv8.2_a-el9", "other"]),
        "Tags": NAMES,
        "BannedSites": st.lists(st.sampled_from(["LCG.A.ch", "LCG.B.ch"]), unique=True),
        "JobName": st.sampled_from(["x", "y z"]),
    },
)


@given(KEYWORDS)
def test_a_job_of_dirac_comes_back_as_it_was(keywords: dict[str, Any]) -> None:
    lines = {
        name: "{" + ", ".join(f'"{each}"' for each in value) + "}"
        if isinstance(value, list)
        else f'"{value}"'
        for name, value in keywords.items()
    }
    jdl = "".join(f"{name} = {value};" for name, value in lines.items())
    found = job_documents.read_jdl(jdl)
    assert job_documents.read_jdl(job_documents.write_jdl(found)) == found
    assert job_documents.list_unmatched(found) == []


def test_what_dirac_cannot_read_is_refused() -> None:
    with pytest.raises(InvalidJob, match="JobName"):
        job_documents.write_jdl({"JobName": "a;b", "requirements": {}})


def test_a_pilot_comes_back_with_what_it_offers() -> None:
    offered = {
        "Site": "LCG.CERN.ch",
        "GridCE": "ce",
        "CPUTime": 120_000,
        "CPUNormalizationFactor": 12.0,
        "MaxRAM": 16_000,
        "NumberOfProcessors": 8,
        "Platform": "x86_64_v2-el9",
        "Tag": ["GPU", "cvmfs:lhcb"],
    }
    node = pilot_documents.read_resource(offered)
    assert (node["wall_time"], node["cpu_power_db12"]) == (10_000, 12.0)
    assert node["tags"] == ["GPU", "cvmfs:lhcb", "os:el9"]
    keywords = node_document.read_keywords(node)
    assert keywords["CPUTime"] == 120_000
    for name in ("Site", "GridCE", "MaxRAM", "NumberOfProcessors", "Platform"):
        assert keywords[name] == offered[name]
    resource = match_request.read_resource(node).resource
    assert (resource.architecture, resource.gpus, resource.processors) == ("x86_64", 1, 8)


def run(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[str, str]:
    """What the command prints."""
    with suppress(SystemExit):
        application.main(["dirac-document", *words])
    return capsys.readouterr()


def test_the_command_translates_both_ways(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    jdl = tmp_path / "job.jdl"
    jdl.write_text('Executable = "x"; CPUTime = 100; WallTime = 60;')
    document, _ = run(capsys, str(jdl), "--json")
    assert json.loads(document)["requirements"] == {"cpu_work_db12": 100, "wall_time": 60}
    stored = tmp_path / "job.yaml"
    stored.write_text(document)
    back, notes = run(capsys, "--jdl", str(stored))
    assert "CPUTime = 100;" in back
    assert "DIRAC does not match by WallTime" in notes
    stored.write_text("{Site: LCG.CERN.ch, CPUTime: 100}")
    assert json.loads(run(capsys, "--pilot", "--json", str(stored))[0])["site"] == "LCG.CERN.ch"


@pytest.mark.parametrize("text", ["3", "{"])
def test_a_description_that_is_no_record_is_refused(
    text: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    stored = tmp_path / "job.yaml"
    stored.write_text(text)
    printed, error = run(capsys, "--jdl", str(stored))
    assert not printed
    assert "job.yaml" in error
