"""Foreign configuration formats: DIRAC's CFG, CE ads, glidein factory entries, GLUE names."""
