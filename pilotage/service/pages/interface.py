"""The OpenAPI description of the HTTP interface and a page made of it; each is made once, as bytes."""

import json
from collections import defaultdict
from collections.abc import Callable, Mapping
from typing import Any

from fastapi import APIRouter, FastAPI, Request, Response

from pilotage.service.pages import templating
from pilotage.service.pages.page import OpenRoute
from pilotage.service.pages.templating import Asset

router = APIRouter(route_class=OpenRoute)

_Schema = Mapping[str, Any]
_REFERENCE = "#/components/schemas/"


@router.get("/openapi.json", response_class=Response)
def describe_interface(request: Request) -> Response:
    """Send the OpenAPI description."""
    return _send_once(request, _describe)


@router.get("/docs", response_class=Response)
def show_interface(request: Request) -> Response:
    """List all routes by tag, then the objects."""
    return _send_once(request, _render)


def _send_once(request: Request, make: Callable[[FastAPI], Asset]) -> Response:
    made: dict[Callable[[FastAPI], Asset], Asset] = request.app.state.documents
    if make not in made:
        made[make] = make(request.app)
    return templating.send(request, made[make])


def _describe(app: FastAPI) -> Asset:
    return Asset.from_content(json.dumps(app.openapi(), ensure_ascii=False).encode(), "application/json")


def _render(app: FastAPI) -> Asset:
    described = app.openapi()
    operations: defaultdict[str, list[tuple[str, str, _Schema]]] = defaultdict(list)
    for path, methods in described["paths"].items():
        for method, spec in methods.items():
            operations[spec.get("tags", ["other"])[0]].append((method.upper(), path, spec))
    models = {
        name: schema
        for name, schema in sorted(described["components"]["schemas"].items())
        if schema.get("properties")
    }
    page = templating.respond(
        "interface/interface.html",
        200,
        {},
        operations=operations,
        models=models,
        describe_type=describe_type,
        find_schema=find_schema,
    )
    return Asset.from_content(bytes(page.body), "text/html; charset=utf-8")


def find_schema(spec: _Schema) -> _Schema | None:
    """The schema of the JSON content of a body or an answer, if it has one."""
    schema: _Schema | None = spec.get("content", {}).get("application/json", {}).get("schema")
    return schema


def describe_type(spec: _Schema) -> tuple[str, str | None]:
    """The type of a value in a few words, and the object type of it or of its members."""
    if "$ref" in spec:
        model = spec["$ref"].removeprefix(_REFERENCE)
        return model, model
    if "anyOf" in spec:
        kinds = [describe_type(each) for each in spec["anyOf"]]
        return " or ".join(kind for kind, _ in kinds), next((model for _, model in kinds if model), None)
    if spec.get("type") == "array":
        kind, model = describe_type(spec.get("items", {}))
        return f"list of {kind}", model
    if "enum" in spec:
        return ", ".join(str(each) for each in spec["enum"]), None
    return str(spec.get("format") or spec.get("type") or "any"), None
