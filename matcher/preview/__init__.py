"""Changes of the configuration: who made them, what a proposed one would do, guards, storing."""
