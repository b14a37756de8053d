"""Parts of the lost-job agent for jobs that wait long: they ask for less, or fail."""
