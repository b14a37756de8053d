import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest

from cs_config.tree.storage import find_common_sites
from optimizers.chain.chain import ChainContext, Done, Failed, Hold, Outcome
from optimizers.steps import replica_catalogue
from optimizers.steps.input_data import input_data
from optimizers.steps.replica_catalogue import CatalogueUnavailableError, FileCatalogue
from tests.support.factories.chain_contexts import candidate_of, context_of

SITES = """
Resources:
  Sites:
    A.B.ch: {SE: [A-disk, Shared-disk], CEs: {}}
    C.D.ch: {SE: Shared-disk, CEs: {}}
"""


def with_catalogue(setting: str) -> str:
    return SITES + f"Operations: {{Defaults: {{JobScheduling: {{InputDataCatalogue: '{setting}'}}}}}}\n"


@pytest.fixture
def catalogue(tmp_path: Path) -> Path:
    path = tmp_path / "replicas.yaml"
    path.write_text(
        "Replicas:\n"
        "  /lhcb/one: [A-disk]\n"
        "  LFN:/lhcb/both: [Shared-disk]\n"
        "  /lhcb/site: [C.D.ch]\n"
        "  /lhcb/none: []\n"
    )
    return path


def said(context: ChainContext, *files: str) -> Outcome:
    return input_data(candidate_of(context, InputData=list(files)), context)


@pytest.mark.parametrize(
    ("files", "sites"),
    [
        (["/lhcb/one"], {"A.B.ch"}),
        (["LFN:/lhcb/both"], {"A.B.ch", "C.D.ch"}),
        (["/lhcb/one", "/lhcb/both"], {"A.B.ch"}),
        (["/lhcb/site", "/lhcb/both"], {"C.D.ch"}),
    ],
)
def test_candidates_are_the_sites_that_have_every_file(
    files: list[str], sites: set[str], catalogue: Path
) -> None:
    context = context_of(with_catalogue(str(catalogue)))
    outcome = said(context, *files)
    assert isinstance(outcome, Done)
    assert find_common_sites(context.config, outcome.candidate.replicas) == sites


@pytest.mark.parametrize("file", ["/lhcb/unknown", "/lhcb/none"])
def test_a_file_without_replica_fails_the_job(file: str, catalogue: Path) -> None:
    context = context_of(with_catalogue(str(catalogue)))
    assert said(context, file) == Failed(reason=f"Input Data Not Available: {file}")


def test_files_that_no_site_has_together_fail_the_job(catalogue: Path) -> None:
    context = context_of(with_catalogue(str(catalogue)))
    outcome = said(context, "/lhcb/one", "/lhcb/site")
    assert isinstance(outcome, Failed)
    assert outcome.reason.startswith("No candidate sites available")


def test_json_is_a_catalogue_too(tmp_path: Path) -> None:
    path = tmp_path / "replicas.json"
    path.write_text(json.dumps({"Replicas": {"/lhcb/x": "A-disk"}}))
    assert isinstance(said(context_of(with_catalogue(str(path))), "/lhcb/x"), Done)


def test_a_changed_file_is_read_again(catalogue: Path) -> None:
    context = context_of(with_catalogue(str(catalogue)))
    assert isinstance(said(context, "/lhcb/new"), Failed)
    catalogue.write_text("Replicas: {/lhcb/new: [A-disk]}\n")
    os.utime(catalogue, ns=(1, 1))
    assert isinstance(said(context, "/lhcb/new"), Done)


@pytest.mark.parametrize("text", ["Replicas: [", "Replicas: []", "", "Replicas: {/lhcb/one: {a: b}}", None])
def test_a_catalogue_that_cannot_be_read_holds_the_job(text: str | None, catalogue: Path) -> None:
    context = context_of(with_catalogue(str(catalogue)))
    catalogue.unlink() if text is None else catalogue.write_text(text)
    outcome = said(context, "/lhcb/one")
    assert isinstance(outcome, Hold)
    assert str(catalogue) in outcome.reason


def test_without_a_catalogue_the_job_waits_for_one() -> None:
    assert isinstance(said(context_of(SITES), "/lhcb/one"), Hold)


class Plugin:
    def __init__(self, argument: str) -> None:
        self.argument = argument

    def replicas(self, files: Sequence[str], vo: str) -> Mapping[str, frozenset[str]]:
        if self.argument == "away":
            raise CatalogueUnavailableError("no answer")
        assert vo == "lhcb"
        return {file: frozenset({self.argument}) for file in files}


def test_a_plug_in_is_named_before_a_colon() -> None:
    context = context_of(with_catalogue("mine:A.B.ch"), {"mine": Plugin})
    outcome = said(context, "/lhcb/x")
    assert isinstance(outcome, Done)
    assert outcome.candidate.replicas == {frozenset({"A.B.ch"})}
    away = said(context_of(with_catalogue("mine:away"), {"mine": Plugin}), "/lhcb/x")
    assert away == Hold(reason="the replica catalogue does not answer: no answer")


@pytest.mark.parametrize(
    ("depth", "wrong"), [(900, "inside each other"), (20_000, "inside each other|maximum nesting depth")]
)
def test_a_catalogue_of_lists_in_lists_is_refused_before_it_is_read(
    tmp_path: Path, depth: int, wrong: str
) -> None:
    file = tmp_path / "nested.yaml"
    file.write_text(f"Replicas: {{/vo/a: {'[' * depth}{']' * depth}}}")
    with pytest.raises(CatalogueUnavailableError, match=wrong):
        FileCatalogue(file).replicas(["/vo/a"], "vo")


def test_a_mistake_in_a_catalogue_is_named_with_its_line(tmp_path: Path) -> None:
    file = tmp_path / "broken.yaml"
    file.write_text("Replicas:\n  /vo/a: [CERN\n")
    with pytest.raises(CatalogueUnavailableError, match="line 3: not YAML: did not find expected ',' or ']'"):
        FileCatalogue(file).replicas(["/vo/a"], "vo")


def test_a_catalogue_that_is_too_large_is_not_read(tmp_path: Path) -> None:
    path = tmp_path / "replicas.yaml"
    with path.open("wb") as file:
        file.truncate(replica_catalogue.MOST_BYTES + 1)
    with pytest.raises(CatalogueUnavailableError, match=r"replicas\.yaml: has 33,554,433 bytes, allowed are"):
        FileCatalogue(path).replicas(["/lhcb/one"], "lhcb")
