"""The text of a configuration: read as sections that have line numbers, written and edited as YAML."""
