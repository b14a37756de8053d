"""The runner: executes a local job on its node, with the standard library and the pilot's modules only."""
