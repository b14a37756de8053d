"""An installation under load while everything around it fails, and a checker that shares no code with it.

`network` has the links between the processes, `installation` the processes and servers, `next_release` what
some of them are upgraded to and back, `faults` what is done to them, `players` the users, pilots, gateways
and administrators, `record` what they saw, `checks` what must hold, `run` all of it together.

    python -m tests.acceptance.campaign --minutes 10 --seed 1 [--sqlite]
"""
