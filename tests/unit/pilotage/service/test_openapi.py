"""The description of the interface, as a generator of clients reads it."""

import keyword
import re
import threading
from collections import Counter
from collections.abc import Iterator
from typing import Any

import jsonschema_rs
import pytest

from pilotage.service import app, openapi
from requirements.errors import PilotageError

Document = dict[str, Any]


@pytest.fixture(scope="module")
def document() -> Document:
    """Made by the process that runs these tests alone: it takes a second."""
    return app.ServiceApplication(routes=app.list_routes()).openapi()


@pytest.fixture(scope="module")
def operations(document: Document) -> Document:
    return {each["operationId"]: each for paths in document["paths"].values() for each in paths.values()}


def list_codes(kind: type[PilotageError] = PilotageError) -> Iterator[str]:
    yield kind.code
    for each in kind.__subclasses__():
        yield from list_codes(each)


def test_operations_have_distinct_names_that_are_functions_in_every_language(
    document: Document, operations: Document
) -> None:
    count = Counter(each["operationId"] for paths in document["paths"].values() for each in paths.values())
    assert set(count.values()) == {1}
    assert all(re.fullmatch(r"[a-z]+(_[a-z]+)+", name) and not keyword.iskeyword(name) for name in operations)
    assert {"jobs_submit", "jobs_list", "jobs_get", "jobs_kill", "jobs_explain", "pools_get", "sites_list",
            "config_get", "config_edit", "accounting_get"} <= set(operations)  # fmt: skip


def test_every_operation_has_a_summary_in_words(operations: Document) -> None:
    for name, operation in operations.items():
        summary = operation["summary"]
        assert summary[0].isupper(), name
        assert not summary.endswith((".", ":", ",")), name
        assert len(summary.split()) > 1, name
        assert operation["description"].replace("\n", " ").startswith(summary), name


def test_every_parameter_and_tag_is_described(document: Document, operations: Document) -> None:
    for name, operation in operations.items():
        for each in operation.get("parameters", ()):
            assert each.get("description") or each["schema"].get("description"), (name, each["name"])
        assert set(operation["tags"]) <= {each["name"] for each in document["tags"]}, name


def test_errors_are_listed_with_codes_that_exist(operations: Document) -> None:
    known = {*list_codes(), "unavailable"}
    listed = {
        code
        for operation in operations.values()
        for status, response in operation["responses"].items()
        if status.isdigit() and int(status) >= 400 and "error.code" in response.get("description", "")
        for code in re.findall(r"`([a-z_]+)`", response["description"])
    }
    assert listed <= known
    assert {"stale_lease", "job_not_found", "version_conflict", "idempotency_conflict"} <= listed
    assert "`illegal_transition`" in operations["jobs_kill"]["responses"]["409"]["description"]
    assert "409" not in operations["jobs_get"]["responses"]
    for name, status, code in (
        ("sandboxes_store", "503", "storage_away"),
        ("jobs_resubmit", "429", "quota_exceeded"),
        ("site_processes_report_process", "409", "other_process"),
        ("site_processes_forget", "409", "other_process"),
        ("jobs_resubmit", "409", "idempotency_conflict"),
    ):
        assert f"`{code}`" in operations[name]["responses"][status]["description"]


def test_operations_without_a_version_list_their_errors(operations: Document) -> None:
    metrics = operations["health_metrics"]["responses"]
    assert "`not_authenticated`" in metrics["401"]["description"]
    assert "`not_allowed`" in metrics["403"]["description"]
    assert "`unavailable`" in metrics["503"]["description"]
    assert "`checks`" in operations["health_ready"]["responses"]["503"]["description"]


@pytest.mark.parametrize("name", openapi.EXAMPLES)
def test_an_example_is_a_body_of_its_operation(name: str, document: Document, operations: Document) -> None:
    content = operations[name]["requestBody"]["content"]["application/json"]
    schema = {**content["schema"], "components": document["components"]}
    jsonschema_rs.validate(schema, content["example"])


@pytest.mark.parametrize("name", openapi.read_answers())
def test_an_example_is_an_answer_of_its_operation(
    name: str, document: Document, operations: Document
) -> None:
    [response] = [each for status, each in operations[name]["responses"].items() if status[0] == "2"]
    content = response["content"]["application/json"]
    schema = {**content["schema"], "components": document["components"]}
    jsonschema_rs.validate(schema, content["example"])


def test_there_are_examples_of_the_twenty_answers_that_people_get_most() -> None:
    assert len(openapi.read_answers()) >= 20


def test_there_are_examples_of_the_twenty_requests_with_a_body_that_are_made_most() -> None:
    assert len(openapi.EXAMPLES) >= 20


def test_threads_that_need_the_description_at_once_share_one(monkeypatch: pytest.MonkeyPatch):
    described = app.ServiceApplication(routes=app.list_routes())
    threads = [threading.Thread(target=described.openapi) for _ in range(4)]
    made: list[object] = []

    def complete(schema: dict[str, object]) -> dict[str, object]:
        made.append(schema)
        if len(made) == 1:
            for each in threads:
                each.start()
            threads[0].join(0.2)  # it waits, or makes another
        return schema

    monkeypatch.setattr(openapi, "complete", complete)
    described.openapi()
    for each in threads:
        each.join()
    assert len(made) == 1
