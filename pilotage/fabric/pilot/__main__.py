"""`python -m pilotage.fabric.pilot`."""

import os
import sys

from pilotage.fabric.pilot.main import main

sys.exit(main(sys.argv[1:], os.environ))
