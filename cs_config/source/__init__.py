"""The text of a configuration: read as sections with line numbers, compared, written and edited as YAML."""
