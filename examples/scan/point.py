#!/usr/bin/env python3
"""The cross section of e+e- to hadrons, in nb, at an energy in GeV. Close to the Z it needs more memory."""

import os
import resource
import sys

energy = float(sys.argv[1])
mass, width, peak = 91.19, 2.5, 41.5
limit = int(os.environ["PILOTAGE_JOB_RAM"]) << 20
resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
grid = bytearray((400 if abs(energy - 91.15) < 1 else 50) << 20)
s = energy**2
print(energy, peak * s * width**2 / ((s - mass**2) ** 2 + (s * width / mass) ** 2))
