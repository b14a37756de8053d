"""Command line, settings, the wiring of the parts, and the embedded mode."""
