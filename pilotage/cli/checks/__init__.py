"""`pilotage doctor`: what may be wrong with an installation, one function for each question."""
