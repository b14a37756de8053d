"""Real servers that tests start, each private; `examples/servers` has those of examples and benchmarks."""
