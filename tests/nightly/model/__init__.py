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

Compared are: the pools of each queue, in every process, after each change; the preview of each change
with its effect; the status of each job, and `No eligible queue`; ids of pools, equal for equal
requirements and for no others; the whole listing of task queues for a resource; each match (it fits,
nobody has it, limits and throttles admit it, its epoch is the next); each answer of nothing (no job fits,
and the reason is true); explanations (candidates, eligible queues, and how many queues each requirement
excludes, of the job, of its description and of imagined jobs); flags for batch systems (each node that
fulfils the requirements fulfils them, and the reverse where they suffice); reports of closed attempts (409);
wrong submissions (400, nothing stored).

Left out, since the documents do not determine it: throttles that are added where jobs were taken away,
requests without a queue where places inside have limits, temporary changes on top of temporary ones, the
reservation of a started job whose pilot was lost (until the next advertisement, or for `RunOnTime`), facts of
nodes that their queue does not declare possible, pilots that measured only some of them.
"""
