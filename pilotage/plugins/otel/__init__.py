"""Traces of ended jobs for an OpenTelemetry collector (the extra `otel`)."""
