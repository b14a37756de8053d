"""An independent model of matching, and a machine that compares the service with it.

The model restates in few pages what the project's specification of matching and its documents promise; each
rule names its paragraph (`§1 "Identity"`). It shares no code with the product: it imports nothing of it, and
drives it over HTTP only. HTCondor's own library is the oracle for the values of expressions. A rule of
matching that is changed on purpose is changed here, too, from the text of the rule and not from the code.

| module | holds |
|---|---|
| `configuration` | the resource tree: effective parameters, access, requirements, identity of pools |
| `jobs` | descriptions, the conditions of a resource, limits, throttles |
| `flags` | mappings of sites to the languages of batch systems, and which nodes fulfil flags |
| `world` | the state: jobs, attempts, bans, advertisements; what a request may be given, and why nothing |
| `machine` | commands that drive service and model, and the comparisons |
| `commands` | random commands, and how often each is drawn |
| `writing` | descriptions as JSON, JDL, YAML, CFG |
| `harness` | the servers: `up` on SQLite, or two `serve` and `agent all` on PostgreSQL |
| `test_model` | the runs, shrinking, repeating |
| `test_order_under_load` | tiers and a limit on cores while many ask at once; uses the harness only |

Compared are: the pools of each queue, in every process, after each change; the preview of each change
with its effect; the status of each job, and `No eligible queue`; ids of pools, equal for equal
requirements and for no others; the whole listing of task queues for a resource; each match (it fits,
nobody has it, limits and throttles admit it, no job of an earlier tier could be given, its cores are those
of a job alone, or its fewest where a limit counts cores, its epoch is the next); each answer of nothing (no
job fits, and the reason is true); explanations (candidates, eligible queues, and how many queues each
requirement excludes, of the job, of its description and of imagined jobs); flags for batch systems (each node
that fulfils the requirements fulfils them, and the reverse where they suffice); reports of closed attempts
(409); wrong submissions (400, nothing stored); what throttles reserve of jobs whose pilots are lost; what
comes back after temporary values within one another.

Left out, since the documents do not determine it: throttles that are added where jobs were taken away,
requests without a queue where places inside have limits, facts of nodes that their queue does not declare
possible, pilots that measured only some of them.

Its power was tried by faults that were planted in the service, with the default number of runs on SQLite.
Where fewer than three seeds stand, no more were run. The number of commands depends much on the seed:

| planted fault | found in | after commands |
|---|---|---|
| a limit, or a throttle, admits one more | 1 of 1, 2 of 2 seeds | 132; 32, 119 |
| a limit on cores admits one more | 1 of 2 seeds | 400 to 480 |
| bans are not read | 1 of 1 | 50 |
| a closed attempt may report, a second end differs | 1 of 1 each | 122; 52 |
| queues that a pool lost are not stored | 1 of 1 | 672 |
| undefined counts as true | 1 of 1 | 21 |
| the outermost `VO` list decides | 2 of 2 | 166, 140 |
| null does not remove what is inherited | 2 of 2 | 162, 83 |
| texts are compared with case | 2 of 2 | 148, 30 |
| `Tag`, or `RequiredTag`, overrides | 1 of 1, 2 of 2 | 23; 23, 246 |
| the index of classes leaves out memory, or GPUs | 2 of 2 each | 788, 118; 55, 241 |
| explanations leave out GPUs | 3 of 3 | 17, 178, 72 |
| what nodes decide counts as not eligible: expression, record | 3 of 3 each | 6 to 25, 26 to 142 |
| what nodes decide counts as decided | 3 of 3 | 27 to 66 |
| a flag bounds too narrowly, takes one of two alternatives | 3 of 3, 2 of 2 | 25, 26, 26; 84, 30 |
| the refresh of pools leaves out a change of one class of queues | 2 of 2 | 46, 126 |
"""
