"""Changes of the configuration: drafts and proposals, edits, rights, temporary values, and what is shown."""
