"""Files of a glidein factory: entries in its XML, and in the YAML from which that is generated."""
