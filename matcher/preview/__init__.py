"""What a change of the configuration would do to what waits and runs now."""
