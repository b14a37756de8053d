"""What jobs state of cores, GPUs, architectures and tags as DiracX's match-making specification wants it."""
