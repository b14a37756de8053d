"""One step a file; a step of a tagged release is never changed."""
