"""What runs a local job on its node: the standard library and the pilot's modules only."""
