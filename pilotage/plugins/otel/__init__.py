"""Traces of ended jobs for an OpenTelemetry collector (the extra `otel`)."""

from pilotage.extensions import Plugin, PluginAgent

PLUGIN = Plugin(
    package=__name__,
    settings="settings:TraceSettings",
    agents={"traces": PluginAgent(every=15.0, open="agent:open_agent", is_optional=True)},
)
