"""The largest amount of each kind that the configuration may state, for its validation and its consumers.

They rely on it: a duration can be added to the time of today and taken from it, a number can be stored and
multiplied. So no value of one VO, site or queue stops the work for the others.
"""

from typing import Final

#: Of a duration: ten years.
SECONDS: Final = 3_650 * 86_400
#: Of the times of a queue, in its own unit: GLUE publishes 999999999 for no limit.
QUEUE_TIME: Final = 10**9
#: Of what is kept: a hundred years, for what is to stay for ever.
DAYS: Final = 36_500
#: Of a moment, in seconds since the epoch: the year 3000.
MOMENT: Final = 32_503_680_000
#: Of CPU time that task queues are cut into, in seconds.
CPU_SECONDS: Final = 10**12

#: Of one pilot, and of one job.
PROCESSORS: Final = 1024
GPUS: Final = 1024
NODES: Final = 1_000_000
MEGABYTES: Final = 10**12
#: Normalised seconds in a second.
POWER: Final = 1_000_000
SI00: Final = 10**9

#: Jobs or pilots that are counted.
JOBS: Final = 10**9
BYTES: Final = 10**15
#: Requests of one subject in a second, and the fewest.
REQUESTS: Final = 1_000_000
FEWEST_REQUESTS: Final = 0.001
#: Tries of one job.
TRIES: Final = 10_000
#: Matches at once after a pause.
BURST: Final = 1_000_000

#: A share among others, and the weight of a slice of time; weights have a smallest value as well.
SHARE: Final = 10**9
SMALLEST_WEIGHT: Final = 1e-9
#: What a share may be multiplied or divided by.
CORRECTION: Final = 1_000_000

#: Corrections of shares, and slices of time of each: every slice costs a query.
CORRECTIONS: Final = 20
#: Values of one list.
LISTED: Final = 1000
#: Limits and delays of one VO, and names that it declares.
NAMED: Final = 10_000

#: Files that one job may name.
FILES: Final = 1_000_000
#: Jobs of one submission, all its descriptions together.
SUBMITTED_JOBS: Final = 100_000
#: Characters of one job's description with its placeholders filled, and of all jobs of one submission.
FILLED: Final = 1_000_000
ALL_FILLED: Final = 50_000_000
