"""Jobs and pilots of DIRAC as documents of the match-making specification, and back."""
