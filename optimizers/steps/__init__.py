"""The shipped steps of the chain, one module for each noun that a step decides."""
