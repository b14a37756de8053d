"""What jobs state of processors, devices and tags as DiracX's match-making specification wants it."""
