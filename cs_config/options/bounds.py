"""Allowed values in the configuration, by kind, for its validation and its consumers.

Consumers rely on them: a duration can be added to and subtracted from the current time, a number can be
stored and multiplied. So no value of one VO, site or queue can break the work for the others.
"""

from typing import Final

#: Durations, in seconds: ten years.
SECONDS: Final = 3_650 * 86_400
#: Shortest time of a lease, of silence or between refreshes: work that is done again and again for one VO.
SHORTEST: Final = 1
#: Times of a queue, in their own unit: GLUE publishes 999999999 for "no limit".
QUEUE_TIME: Final = 10**9
#: Retention: a hundred years, in effect forever.
DAYS: Final = 36_500
#: A moment, in seconds since the epoch: the year 3000.
MOMENT: Final = 32_503_680_000
#: Bounds of CPU time intervals of task queues, in seconds.
CPU_SECONDS: Final = 10**12

#: CPU work of one job, in DB12 seconds: all cores of a slot for its longest time.
CPU_WORK: Final = 10**15

#: Processors, and other resources, of one pilot or one job.
PROCESSORS: Final = 1024
NODES: Final = 1_000_000
MEGABYTES: Final = 10**12
#: Normalised seconds per second.
POWER: Final = 1_000_000
#: HEPScore23 of a core; those of today have 5 to 50.
LEAST_HEPSCORE: Final = 0.001
HEPSCORE: Final = 10_000
SI00: Final = 10**9

#: Counts of jobs or pilots, and of the processors of many jobs.
JOBS: Final = 10**9
CORES: Final = 10**12
BYTES: Final = 10**15
#: Requests of one subject per second, largest and smallest limit.
REQUESTS: Final = 1_000_000
FEWEST_REQUESTS: Final = 0.001
#: Attempts of one job.
TRIES: Final = 10_000
#: Times that a job may be given back before its start until that counts as one rescheduling.
RELEASES: Final = 10
#: Matches at once after a pause.
BURST: Final = 1_000_000

#: A share, and the weight of a time slice; weights have a smallest value as well.
SHARE: Final = 10**9
SMALLEST_WEIGHT: Final = 1e-9
#: Factor by which a share may be multiplied or divided.
CORRECTION: Final = 1_000_000

#: Share corrections, and time slices of each: every slice costs a query.
CORRECTIONS: Final = 20
#: Job types in all tiers of a VO: each request for work may have to look for jobs of each.
ORDERED_TYPES: Final = 100
#: Values in one list of the configuration, or names in one of a description, which matchers have in memory.
LISTED: Final = 1000
#: Characters of the name of a site, CE, platform or tag in a description, and of a job's name, type, group.
NAME: Final = 255
#: Limits and delays of one VO, and declared names.
NAMED: Final = 10_000
#: Limits by kind of job in one section for one site or CE: each claim there looks at all of them.
LIMITS_OF_PLACE: Final = 100

#: Values in one change of the configuration by an administrator, and characters of its text: less than a
#: second of processor time. Values in all that one may change: each process reads these with each version.
EDITED_VALUES: Final = 3_000
EDITED_TEXT: Final = 250_000
OWN_VALUES: Final = 20_000
#: Values that queues inherit from the own ones, each counted for each queue: every process stores them all.
INHERITED_VALUES: Final = 500_000
#: Values of the configuration that one author may have changed temporarily at a time.
TEMPORARY_VALUES: Final = 1000
#: Temporary values of one path within one another.
TEMPORARY_LEVELS: Final = 10

#: Input files of one job.
FILES: Final = 1_000_000
#: Characters of all defaults of keywords that a VO, or the installation, states: each job that is given to a
#: pilot has them in its description, and one answer has up to a thousand.
DEFAULT_VALUES: Final = 16_384
#: Jobs of one submission, in all its descriptions: less than a second of processor time.
SUBMITTED_JOBS: Final = 10_000
#: Ids and names of jobs that one job waits for, and pairs of a job and one before it in a submission.
PARENTS: Final = 1_000
DEPENDENCIES: Final = 100_000
#: So many of these pairs count as a further job in an hour: each takes 124 bytes of the database.
EDGES_OF_JOB: Final = 8
#: Rules of one job for its failures, and those for its waiting, each with the values that all of them change,
#: which are checked with every job; the characters, factor and seconds of delay of one of them.
JOB_RULES: Final = 20
JOB_RULE_CHANGES: Final = 40
JOB_RULE: Final = 300
JOB_RULE_FACTOR: Final = 10
JOB_RULE_DELAY: Final = 7 * 86_400
#: Retries by one rule, and the fewest seconds after which a waiting job gives something up.
RETRIES: Final = 10
RELAX_AFTER: Final = 60
#: Jobs of one parametric description, which clients send in several submissions.
PARAMETRIC_JOBS: Final = 100_000
#: Jobs of a submission that the service processes itself; the optimizers process larger ones.
DECIDED_JOBS: Final = 1_000
#: Submissions of one owner that are stored at the same time; further ones wait, so that limits stay exact.
SUBMISSIONS_AT_ONCE: Final = 16
#: Bytes of a body, other than an archive, of all but operators: read, it takes up to 50 MB of memory.
BODY: Final = 3_500_000
#: Values in the JSON of one request: names, items, lists and objects. Each takes a hundred bytes of memory.
JSON_VALUES: Final = 700_000
#: Values in the different JSON objects of one submission: less than a second of processor time.
RECORD_VALUES: Final = 150_000
#: Characters of one text with descriptions; most are the names of input files.
DESCRIBED: Final = 10_000_000
#: Words, strings and signs in several different texts of one submission: about a second of processor time.
DESCRIBED_TOKENS: Final = 200_000
#: The same in expressions of Requirements and Rank that differ, also by values for their placeholders: about
#: a second, too, since each is checked, brought into its normal form and evaluated.
EXPRESSION_TOKENS: Final = 15_000
#: Work of evaluating each of these once, as `requirements.classad.work` counts it: at most 30 ms.
EXPRESSION_WORK: Final = 300_000_000
#: Values of all jobs of one submission that are read with their placeholders replaced.
FILLED_VALUES: Final = 500_000
#: Characters of one job's description with its placeholders replaced, and of all jobs of one submission.
FILLED: Final = 1_000_000
ALL_FILLED: Final = 50_000_000

#: Bytes of one sandbox that a client of DIRAC sends in a form, as DIRAC's own store has it.
DIRAC_SANDBOX: Final = 10 << 20
#: Pilots that a client of DIRAC registers, and reads, in one call.
DIRAC_PILOTS: Final = 100
DIRAC_PILOTS_READ: Final = 10_000
#: Pilots that have not ended of one user of DIRAC whose group has no GenericPilot.
DIRAC_OWN_PILOTS: Final = 1_000

#: Parameters of one job, characters of the name and of the value of each, and of all values together.
PARAMETERS: Final = 100
PARAMETER_NAME: Final = 128
PARAMETER_VALUE: Final = 16_384
ALL_PARAMETERS: Final = 131_072
#: Changes of the minor or application status of one job in its log; later ones change the job only.
LOGGED_NOTES: Final = 1_000

#: Keywords in a JDL of DIRAC, and items in one of its lists.
DIRAC_KEYWORDS: Final = 1_000
DIRAC_ITEMS: Final = 100_000
#: Jobs whose parameters, or outputs, one call of a DIRAC client reads or sets, and characters that it reads.
DIRAC_JOBS_READ: Final = 1_000
DIRAC_JOBS_SET: Final = 200
DIRAC_READ: Final = 10_000_000
#: Values of an attribute of jobs that the portal of DIRAC gets: those with the most jobs.
DIRAC_VALUES: Final = 2_000
#: Records WMSHistory with all their keys; the jobs of smaller groups are added up.
DIRAC_RECORDS: Final = 100_000
#: Changes of the minor or application status in one report of a DIRAC client that count: the last ones.
DIRAC_NOTES: Final = 50

#: Pools in one page of the pools of queues, by default and at most.
QUEUE_POOLS: Final = 20_000
#: Bytes of answers that are passed to a connection at a time, and those of a short one, which may wait in a
#: connection uncounted.
ANSWER_PIECE: Final = 64 << 10
SHORT_ANSWER: Final = 16 << 10
#: Bytes a second at which bodies have to come, and answers to be read, and the seconds that a client may let
#: the service wait beyond that: a sender, of whose body little is in memory, and a reader.
SLOWEST: Final = 10_000
SENDER_PATIENCE: Final = 60.0
READER_PATIENCE: Final = 30.0

#: Groups in one summary of jobs: less than a second of processor time.
SUMMARY_GROUPS: Final = 10_000

#: Command lines that wait for a login, of all and of one address: anybody may begin one.
DEVICE_LOGINS: Final = 10_000
DEVICE_LOGINS_OF_ADDRESS: Final = 500

#: Sign-ins of one person at once, after a pause, and seconds for each further one: the id of a session that
#: was ended is kept, and read by each process, until the session would have expired.
SIGN_INS: Final = 100
SIGN_IN_SECONDS: Final = 120

#: Directors and gateways of one VO, and characters of all their reports: lists of processes read them whole.
SITE_PROCESSES: Final = 1_000
SITE_REPORTS: Final = 4_000_000

#: Web hooks of one VO: an agent sends to each of them.
WEB_HOOKS: Final = 100
#: Characters of the address of a web hook, and of its name.
HOOK_URL: Final = 2000
HOOK_NAME: Final = 100
#: Deliveries of one web hook that wait to be sent; later events are dropped and counted.
HOOK_DELIVERIES: Final = 1_000
#: Jobs in one delivery of a web hook, and bytes of them; one job may be larger by itself.
HOOK_JOBS: Final = 200
HOOK_BYTES: Final = 128 << 10

#: Attributes of an advertisement beside those of the policies, and bytes of all as JSON: a match reads them.
ADVERTISED: Final = 200
ADVERTISED_BYTES: Final = 64 << 10

#: A call that a door for DIRAC passes on to the former services: seconds, and bytes and values of the answer.
#: A submission has nearly the time after which DIRAC's clients give up: storing one may take long.
FORMER_SECONDS: Final = 120.0
FORMER_SUBMIT_SECONDS: Final = 540.0
FORMER_BYTES: Final = 64 << 20
FORMER_VALUES: Final = 3_000_000
#: Seconds for a connection to one of their URLs, and those in which the others are tried before it.
FORMER_CONNECT_SECONDS: Final = 5.0
FORMER_DEAD_SECONDS: Final = 60.0
