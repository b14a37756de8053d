"""What routes and pages read and change together, in terms of a caller."""
