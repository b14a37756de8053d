"""The resource tree and the options of the operations: load, validate, inherit, select, version."""
