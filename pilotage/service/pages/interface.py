"""Documentation page of the HTTP interface, generated from the OpenAPI description."""

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
    kind: str  #: its type in a few words
    model: str | None  #: its object type, described on the same page
    place: str  #: path, query or header; empty: a field
    needed: bool
    about: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Operation:
    """A method of a route."""

    method: str
    path: str
    title: str
    about: str
    parameters: Sequence[Named]
    body: Named | None
    answer: Named | None


@router.get("/docs")
def interface(request: Request) -> HTMLResponse:
    """List all routes by tag, then the objects."""
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
        for method, spec in methods.items():
            operation = Operation(
                method=method.upper(),
                path=path,
                title=spec["summary"],
                about=spec.get("description", ""),
                parameters=[_parameter(each) for each in spec.get("parameters", ())],
                body=_content("body", spec.get("requestBody", {})),
                answer=_content("answer", _success(spec["responses"])),
            )
            yield spec.get("tags", ["other"])[0], operation


def _parameter(spec: _Schema) -> Named:
    return _operation_name(
        spec["name"], {**spec["schema"], **spec}, place=spec["in"], needed=spec.get("required", False)
    )


def _success(responses: Mapping[str, _Schema]) -> _Schema:
    return next((spec for status, spec in responses.items() if status.startswith("2")), {})


def _content(name: str, spec: _Schema) -> Named | None:
    """The JSON content of a body or an answer, if it has a schema."""
    schema = spec.get("content", {}).get("application/json", {}).get("schema")
    return _operation_name(name, schema, needed=spec.get("required", True)) if schema else None


def _fields(schema: _Schema) -> Iterator[Named]:
    for name, spec in schema.get("properties", {}).items():
        yield _operation_name(name, spec, needed=name in schema.get("required", ()))


def _operation_name(name: str, spec: _Schema, *, needed: bool, place: str = "") -> Named:
    kind, model = _kind(spec)
    return Named(
        name=name, kind=kind, model=model, place=place, needed=needed, about=spec.get("description", "")
    )


def _kind(spec: _Schema) -> tuple[str, str | None]:
    """The type of a value, and the object type of it or of its members."""
    if "$ref" in spec:
        model = spec["$ref"].removeprefix(_REFERENCE)
        return model, model
    if "anyOf" in spec:
        kinds = [_kind(each) for each in spec["anyOf"]]
        return " or ".join(kind for kind, _ in kinds), next((model for _, model in kinds if model), None)
    if spec.get("type") == "array":
        kind, model = _kind(spec.get("items", {}))
        return f"list of {kind}", model
    if "enum" in spec:
        return ", ".join(str(each) for each in spec["enum"]), None
    return str(spec.get("format") or spec.get("type") or "any"), None
