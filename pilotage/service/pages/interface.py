"""Documentation page of the HTTP interface, generated from the OpenAPI description."""

from collections import defaultdict
from collections.abc import Mapping
from typing import Any

from fastapi import APIRouter, Request
from fastapi.responses import HTMLResponse

from pilotage.service.pages import templating
from pilotage.service.pages.page import OpenRoute

router = APIRouter(route_class=OpenRoute)

_Schema = Mapping[str, Any]
_REFERENCE = "#/components/schemas/"


@router.get("/docs")
def show_interface(request: Request) -> HTMLResponse:
    """List all routes by tag, then the objects."""
    described = request.app.openapi()
    operations: defaultdict[str, list[tuple[str, str, _Schema]]] = defaultdict(list)
    for path, methods in described["paths"].items():
        for method, spec in methods.items():
            operations[spec.get("tags", ["other"])[0]].append((method.upper(), path, spec))
    models = {
        name: schema
        for name, schema in sorted(described["components"]["schemas"].items())
        if schema.get("properties")
    }
    return templating.respond(
        "interface/interface.html",
        200,
        {},
        operations=operations,
        models=models,
        describe_type=describe_type,
        find_schema=find_schema,
    )


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
