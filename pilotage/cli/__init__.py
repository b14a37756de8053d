"""The command line, the settings and the wiring of the parts."""
