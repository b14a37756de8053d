"""DIRAC's own services for its genuine clients: translates between DIRAC's wire and the packages below."""
