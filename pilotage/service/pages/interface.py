"""The HTTP interface described for people, from the same description that programs get."""

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from fastapi import APIRouter, Request
from fastapi.responses import HTMLResponse

from pilotage.service.pages import templating
from pilotage.service.pages.page import OpenRoute

router = APIRouter(route_class=OpenRoute)

_Schema = Mapping[str, Any]
_REFERENCE = "#/components/schemas/"


@dataclass(frozen=True, slots=True, kw_only=True)
class Named:
    """A parameter of a request, or a field of an object."""

    name: str
    kind: str  #: what it is, in a word or two
    model: str | None  #: the object that it has, described on the same page
    place: str  #: path, query or header; empty: a field
    needed: bool
    about: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Operation:
    """A route with a method."""

    method: str
    path: str
    title: str
    about: str
    parameters: Sequence[Named]
    body: Named | None
    answer: Named | None


@router.get("/docs")
def interface(request: Request) -> HTMLResponse:
    """All routes by their noun, then the objects that they take and give."""
    described = request.app.openapi()
    operations: defaultdict[str, list[Operation]] = defaultdict(list)
    for tag, operation in _operations(described["paths"]):
        operations[tag].append(operation)
    models = {
        name: list(_fields(schema)) for name, schema in sorted(described["components"]["schemas"].items())
    }
    text = (
        templating.environment()
        .get_template("interface/interface.html")
        .render(operations=operations, models={name: fields for name, fields in models.items() if fields})
    )
    return HTMLResponse(text)


def _operations(paths: Mapping[str, Mapping[str, _Schema]]) -> Iterator[tuple[str, Operation]]:
    for path, methods in paths.items():
        for method, said in methods.items():
            operation = Operation(
                method=method.upper(),
                path=path,
                title=said["summary"],
                about=said.get("description", ""),
                parameters=[_parameter(each) for each in said.get("parameters", ())],
                body=_content("body", said.get("requestBody", {})),
                answer=_content("answer", _success(said["responses"])),
            )
            yield said.get("tags", ["other"])[0], operation


def _parameter(said: _Schema) -> Named:
    return _operation_name(
        said["name"], {**said["schema"], **said}, place=said["in"], needed=said.get("required", False)
    )


def _success(responses: Mapping[str, _Schema]) -> _Schema:
    return next((said for status, said in responses.items() if status.startswith("2")), {})


def _content(name: str, said: _Schema) -> Named | None:
    """What a body or an answer has, if it is JSON that is described."""
    schema = said.get("content", {}).get("application/json", {}).get("schema")
    return _operation_name(name, schema, needed=said.get("required", True)) if schema else None


def _fields(schema: _Schema) -> Iterator[Named]:
    for name, said in schema.get("properties", {}).items():
        yield _operation_name(name, said, needed=name in schema.get("required", ()))


def _operation_name(name: str, said: _Schema, *, needed: bool, place: str = "") -> Named:
    kind, model = _kind(said)
    return Named(
        name=name, kind=kind, model=model, place=place, needed=needed, about=said.get("description", "")
    )


def _kind(said: _Schema) -> tuple[str, str | None]:
    """What a value is, and the object that it has or that its members are."""
    if "$ref" in said:
        model = said["$ref"].removeprefix(_REFERENCE)
        return model, model
    if "anyOf" in said:
        kinds = [_kind(each) for each in said["anyOf"]]
        return " or ".join(kind for kind, _ in kinds), next((model for _, model in kinds if model), None)
    if said.get("type") == "array":
        kind, model = _kind(said.get("items", {}))
        return f"list of {kind}", model
    if "enum" in said:
        return ", ".join(str(each) for each in said["enum"]), None
    return str(said.get("format") or said.get("type") or "any"), None
