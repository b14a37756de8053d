"""Problems of an installation: one table of checks, for the overview, `doctor` and the metrics."""
