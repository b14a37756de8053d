"""Typed answers: all that a service sent, with attributes that tolerate newer and older services."""

import copy
import dataclasses
import json
from collections.abc import Mapping
from typing import Any

import pytest

from pilotage import Client, CountedJobs, EligibilityReport
from pilotage.client.answers import Answer, ConfigPreview, HelpfulChange
from pilotage.client.api import ServiceClient
from pilotage.service.models.config import PreviewAnswer
from pilotage.service.models.explain import ChangeAnswer, JobExplanation

EXPLAINED = {
    "job_id": 7, "status": "Waiting", "eligible_queues": 0, "candidate_queues": 3, "added_in_2_0": [1],
    "reasons": [{"requirement": "MaxRAM", "wanted": "9", "excluded": 3, "only_this": 2, "example": None}],
    "changes": [{"change": "MaxRAM = 4", "gains": 3, "example": "A/b/c"}],
}  # fmt: skip


def test_an_explanation_is_the_dictionary_that_was_sent_with_attributes() -> None:
    found = EligibilityReport.from_json(EXPLAINED)
    assert found == EXPLAINED
    assert json.loads(json.dumps(found)) == EXPLAINED
    assert isinstance(found["reasons"], list)
    assert [each.requirement for each in found.reasons] == ["MaxRAM"]
    assert (found.changes[0].gains, found["changes"][0]["gains"]) == (3, 3)
    assert found["added_in_2_0"] == [1]
    assert (found.now, found.forwarding) == ((), None), "not sent"
    assert copy.deepcopy(found) == found


@pytest.mark.parametrize("kind", [EligibilityReport, ConfigPreview, CountedJobs])
def test_an_answer_of_an_older_service_has_defaults_for_what_it_lacks(kind: type[Answer]) -> None:
    empty = kind.from_json({})
    assert empty == {}
    for each in dataclasses.fields(kind):
        assert not getattr(empty, each.name)


@pytest.mark.parametrize(
    ("kind", "model"),
    [
        (EligibilityReport, JobExplanation),
        (ConfigPreview, PreviewAnswer),
        (HelpfulChange, ChangeAnswer),
    ],
)
def test_attributes_are_named_as_the_service_names_them(kind: type[Answer], model: Any) -> None:
    assert {each.name for each in dataclasses.fields(kind)} <= model.model_fields.keys()


def test_the_methods_of_a_client_return_them(monkeypatch: pytest.MonkeyPatch) -> None:
    sent: Mapping[str, Any] = {
        "/jobs/7/explain": EXPLAINED,
        "/jobs/summary": {"summary": [{"status": "Done", "site": "A", "count": 5, "waited": {"ban": 3.0}}]},
        "/config/preview": {
            "version": 4,
            "totals": {"stuck_jobs": 2},
            "pools": [{"pool": "p", "lost": ["q"]}],
        },
    }
    monkeypatch.setattr(ServiceClient, "_call", lambda _, _method, path, **_more: sent[path])
    with Client("http://127.0.0.1:9", "x") as client:
        assert client.explain(7).reasons[0].only_this == 2
        [counted] = client.count("status", "site")
        assert (counted.count, counted.group) == (5, {"status": "Done", "site": "A"})
        preview = client.preview_config({"Resources/Sites/A/MaxRAM": 4})
    assert (preview.totals["stuck_jobs"], preview.pools[0].lost, preview.removed_queues) == (2, ["q"], ())
