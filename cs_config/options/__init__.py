"""The options of `Operations` and `Registry`: models, defaults, bounds."""
