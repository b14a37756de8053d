"""Traces to an OpenTelemetry collector, by OTLP over HTTP (the extra `otel`)."""

from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from hashlib import sha256

from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export import SpanExportResult
from opentelemetry.sdk.util.instrumentation import InstrumentationScope
from opentelemetry.trace import SpanContext, SpanKind, Status, StatusCode, TraceFlags

from pilotage.plugins.otel.spans import Span

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_SCOPE = InstrumentationScope("pilotage")
#: Spans in a request: collectors take some megabytes.
_MOST = 2000


class Collector:
    """A collector; its headers, certificates and time limit are those of the variables OTEL_EXPORTER_OTLP_*.

    Args:
        url: Base URL of its OTLP receiver, such as http://localhost:4318.
    """

    def __init__(self, url: str) -> None:
        self._exporter = OTLPSpanExporter(endpoint=f"{url.rstrip('/')}/v1/traces")
        self._resource = Resource.create({"service.name": "pilotage"})

    def send(self, traces: Sequence[Span]) -> bool:
        """Send traces of jobs, and return whether the collector took them."""
        spans = [each for trace in traces for each in list_spans(trace, self._resource)]
        pieces = (spans[begin : begin + _MOST] for begin in range(0, len(spans), _MOST))
        return all(self._exporter.export(piece) is SpanExportResult.SUCCESS for piece in pieces)

    def close(self) -> None:
        """Close the connections to the collector."""
        self._exporter.shutdown()  # type: ignore[no-untyped-call]


def list_spans(trace: Span, resource: Resource) -> Iterator[ReadableSpan]:
    """A job's trace as OpenTelemetry has it: the job's span, then those within it.

    Ids are digests of the job and of a span's place, so that they are the same whenever it is sent.
    """
    job = f"{trace.attributes['pilotage.vo']} {trace.attributes['pilotage.job_id']} {trace.begin.isoformat()}"
    trace_id = int.from_bytes(sha256(job.encode()).digest()[:16])
    yield from _list(trace, resource, trace_id=trace_id, place="job", parent=None)


def _list(
    span: Span, resource: Resource, *, trace_id: int, place: str, parent: SpanContext | None
) -> Iterator[ReadableSpan]:
    span_id = int.from_bytes(sha256(f"{trace_id} {place}".encode()).digest()[:8])
    context = SpanContext(trace_id, span_id, is_remote=False, trace_flags=TraceFlags(TraceFlags.SAMPLED))
    attributes: Mapping[str, str | int | float] = span.attributes
    yield ReadableSpan(
        name=span.name,
        context=context,
        parent=parent,
        resource=resource,
        attributes=attributes,
        kind=SpanKind.INTERNAL,
        status=Status(StatusCode.ERROR, span.failed) if span.failed else Status(StatusCode.OK),
        start_time=_nanoseconds(span.begin),
        end_time=_nanoseconds(max(span.begin, span.end)),
        instrumentation_scope=_SCOPE,
    )
    for number, child in enumerate(span.children):
        inner = f"{place}/{number}"
        yield from _list(child, resource, trace_id=trace_id, place=inner, parent=context)


def _nanoseconds(at: datetime) -> int:
    return (at - _EPOCH) // timedelta(microseconds=1) * 1000
