"""`pilotage config`: show, check, change, import and export the configuration."""
