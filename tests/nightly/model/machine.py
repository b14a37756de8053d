"""The machine: commands that drive the service and the model alike, and compare them.

A command is plain data (`{"do": "request", …}`); it refers to jobs and attempts by numbers that are taken
modulo what there is, so that any part of a list of commands is a list of commands, for shrinking and
repeating.
"""

import time
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

from tests.nightly.model import configuration, jobs, writing
from tests.nightly.model.harness import OPERATIONS, PATIENCE, REGISTRY, VOS, Answer, Requests
from tests.nightly.model.jobs import Attempt, Job, Resource
from tests.nightly.model.world import World

Command = dict[str, Any]
#: Pools that a preview names at most: those with most waiting jobs.
SHOWN_POOLS = 100
#: What a pilot offers that is to get something.
GENEROUS = {
    "CPUTime": 10**7,
    "NumberOfProcessors": 8,
    "GPUs": 2,
    "MaxRAM": 16000,
    "Tag": ["ta", "tb", "tc"],
}


class Difference(AssertionError):
    """The service does other than the model."""


class Machine:
    """One run of commands against an installation, from a configuration of its own."""

    def __init__(self, installed: Requests, pools: dict[Any, str], *, patience: float = PATIENCE) -> None:
        """Begin with sites of new names.

        Args:
            installed: The services.
            pools: Ids of pools by their identity, of all runs: §1 "from any process … the same id".
            patience: Seconds that the service has for what it does in the background.
        """
        self.installed = installed
        self.pools = pools
        self._patience = patience
        self.done: Counter[str] = Counter()  #: what was compared and done
        self.world = World({"Registry": REGISTRY, "Operations": OPERATIONS, "Resources": {"Sites": {}}})
        self.was_throttled: set[str] = set()
        installed.begin_run()

    def apply(self, command: Command) -> None:
        """Do a command, if it is possible now."""
        arguments = {name: value for name, value in command.items() if name != "do"}
        getattr(self, f"do_{command['do']}")(**arguments)
        self.done[command["do"]] += 1

    def end(self) -> None:
        """Take all lost jobs back, and compare; explain what still waits."""
        self.do_regain()
        self._compare_jobs()
        for job in self._distinct(self.world.jobs):
            self._explain(job, job.id)

    @staticmethod
    def _distinct(found: Sequence[Job]) -> list[Job]:
        """Of those that wait one of each description."""
        return list({repr(job.description): job for job in found if job.status == "Waiting"}.values())

    def clean_up(self) -> None:
        """Leave nothing that waits, which another run could meet."""
        for job in self.world.jobs:
            self.installed.call("POST", f"/jobs/{job.id}/kill", {})

    # ------------------------------------------------------------------ speaking to the service

    def _call(self, method: str, path: str, body: Any = None, **more: Any) -> Answer:
        answer = self.installed.call(method, path, body, **more)
        if answer.status >= 500:
            raise Difference(f"{method} {path} {body}: {answer.status} {answer.body}")
        return answer

    def _get(self, path: str, **more: Any) -> Any:
        answer = self._call("GET", path, **more)
        self._equal(f"GET {path}", answer.status, 200)
        return answer.body

    @staticmethod
    def _equal(what: str, seen: Any, wanted: Any) -> None:
        if seen != wanted:
            raise Difference(f"{what}: the service has {seen!r}, the model {wanted!r}")

    def _eventually(self, compare: Callable[[], None]) -> None:
        """What the service does in the background has its time; what it then has must be right."""
        deadline, pause = time.monotonic() + self._patience, 0.01
        while True:
            try:
                return compare()
            except Difference:
                if time.monotonic() > deadline:
                    raise
            time.sleep(pause)
            pause = min(1, pause * 1.5)

    # ------------------------------------------------------------------ configuration

    def do_configure(self, tree: dict[str, Any]) -> None:
        """Put a whole configuration."""
        tree = {"Registry": REGISTRY, **tree}
        if self._put({"config": tree}, "PUT"):
            self.world.tree = tree
            self._settle()

    def do_edit(self, edit: dict[str, Any], *, service: int, whole: bool) -> None:
        """Preview a change and make it; as a patch, or by putting the whole tree."""
        there = [path for path in edit.get("remove", []) if self.world.has(path)]
        edit = {"set": edit.get("set", {}), "remove": there}
        tree = self.world.edited(edit)
        if not any(edit.values()) or self._clashes(tree):
            return
        body = {"config": tree} if whole else edit
        self._compare_preview(body, tree, service)
        if self._put(body, "PUT" if whole else "PATCH", service=service):
            begun = self.world.throttled(tree) - self.world.throttled()
            self.world.change(tree)
            self._settle()
            for place in begun:
                self._eventually(lambda place=place: self._compare_reserved(place, service))

    def _compare_reserved(self, place: str, service: int) -> None:
        """§3 "Reservations": a new throttle counts all attempts on their way, once it is in force.

        An advertisement before that acknowledges none of them.
        """
        shown = self._get(f"/sites/{place.partition('/')[0]}", service=service)["throttles"]
        seen = next((each["reserved"] for each in shown if each["scope"] == place), None)
        self._equal(f"reservations at {place}", seen, self.world.reserved(place))

    def _clashes(self, tree: Any) -> bool:
        """Whether the change is one that the model leaves out.

        A throttle that comes where jobs were taken away, or where there was one before: which of their
        reservations the new one counts is not specified.
        """
        before, after = self.world.throttled(), self.world.throttled(tree)
        new = after - before
        taken_away = any(
            each.is_reserved and not each.is_open for place in new for each in self.world.attempts_at(place)
        )
        clashes = taken_away or bool(new & self.was_throttled)
        self.was_throttled |= before if clashes else before | after
        return clashes

    def _put(self, body: dict[str, Any], method: str, service: int = 0) -> bool:
        """Make a version; False: it is refused, and then stays as it was."""
        while True:
            version = self._get("/config", service=service)["version"]
            headers = {"If-Match": str(version)}
            answer = self._call(method, "/config", {**body, "message": "m"}, service=service, headers=headers)
            if answer.ok:
                self.done["versions"] += 1
                return True
            if answer.status != 409:
                raise Difference(f"{method} /config: {answer.status} {answer.body}; {body}")

    def do_temporary(self, path: str, values: Sequence[Any], *, is_within: bool, service: int) -> None:
        """VO admins, `--for`: a temporary value within another gives way to it, or outlasts it.

        What comes back at last is what was there before both. The first of the values is in force for hours
        or, if the second one is to outlast it, for less.
        """
        first, second = ({"set": {path: value}} for value in values)
        node = path.rpartition("/")[0]
        if not self.world.has(node) or (self.world.has(path) and self.world.value_at(path) in values):
            return
        before = self.world.tree
        self._put({**first, "revert_after": 7200 if is_within else 1}, "PATCH", service=service)
        self._put({**second, "revert_after": 1 if is_within else 2}, "PATCH", service=service + 1)
        if is_within:
            self.world.change(self.world.edited(first))
            self._come_back(path, levels=1)
            self._put({**first, "revert_after": 1}, "PATCH", service=service)  # sooner
        self.world.change(before)
        self._come_back(path, levels=0)
        self.done["temporary values came back"] += 1

    def _come_back(self, path: str, *, levels: int) -> None:
        """Wait until the value of the model is in force, with so many temporary ones, and everywhere."""

        def compare() -> None:
            left = self._get(f"/config/temporary?path={path}")["values"]
            self._equal(f"temporary values of {path}: {left}", len(left), levels)
            shown = World(self._get("/config")["config"])
            wanted, seen = (each.has(path) and [each.value_at(path)] for each in (self.world, shown))
            self._equal(f"value of {path} after a temporary one", seen, wanted)

        self._eventually(compare)
        self._settle()

    def _compare_preview(self, body: dict[str, Any], tree: Any, service: int) -> None:
        """Preview = effect: the pools that gain or lose queues, the jobs that become stuck or free."""
        answer = self._call("POST", "/config/preview", body, service=service)
        self._equal(f"preview: {answer.body if answer.status != 200 else ''} of {body}", answer.status, 200)
        seen = {each["pool"]: (set(each["gained"]), set(each["lost"])) for each in answer.body["pools"]}
        wanted, stuck, freed = {}, 0, 0
        for job in self.world.jobs:
            before, after = (self.world.mapping(job, each) for each in (None, tree))
            if job.requirements is not None and before != after:
                wanted[self._pool_of(job)] = (after - before, before - after)
            if job.status == "Waiting" and not job.in_flux:
                before, after = (
                    self.world.suitable_queues(job.description, each)[1] for each in (None, tree)
                )
                stuck += bool(before) and not after
                freed += bool(after) and not before
        ours = {self._pool_of(job) for job in self.world.jobs}
        if len(seen) == SHOWN_POOLS:  # those of earlier runs may take the places of those without a job
            waiting = {self._pool_of(job) for job in self._waiting()}
            wanted = {pool: change for pool, change in wanted.items() if pool in waiting | seen.keys()}
        self._equal(f"preview of {body}", {p: c for p, c in seen.items() if p in ours}, wanted)
        if not any(job.in_flux for job in self.world.jobs):
            totals = answer.body["totals"]
            shown = (totals["stuck_jobs"], totals["freed_jobs"])
            self._equal(f"jobs that get stuck or free by {body}", shown, (stuck, freed))
        self.done["previews"] += 1

    def _pool_of(self, job: Job) -> str | None:
        return job.requirements and self.pools.get(configuration.identity(job.requirements, job.vo))

    def _settle(self) -> None:
        """Wait until every process has the mapping of the current version, and compare it queue by queue."""
        for service in range(len(self.installed.clients)):
            self._eventually(lambda service=service: self._compare_pools(service))
        self._eventually(self._compare_jobs)

    def _compare_pools(self, service: int) -> None:
        """§1 getSubmitPoolsForQueue: each queue has exactly the pools that it is eligible for."""
        queues = list(configuration.queues(self.world.tree))
        if not queues:
            return
        body = {"queues": queues, "flags": True}
        answer = self._call("POST", "/matcher/getSubmitPoolsForQueue", body, service=service)
        self._equal("getSubmitPoolsForQueue", answer.status, 200)
        waiting = {}
        for job in self.world.jobs:
            if job.requirements is not None and job.status not in jobs.FINAL and not job.in_flux:
                waiting[configuration.identity(job.requirements, job.vo)] = job
        mappings = {self.pools[key]: (job, self.world.mapping(job)) for key, job in waiting.items()}
        for pool, (job, mapping) in mappings.items():
            seen = {queue for queue, pools in answer.body["pools"].items() if pool in pools}
            if seen != mapping:
                what = {queue: self._state_of(queue)[:2] for queue in seen ^ mapping}
                message = f"queues of the pool {pool} of {job.vo} with {job.requirements}"
                raise Difference(f"{message}: the service has {seen}, the model {mapping}; {what}")
            self.done["pools compared queue by queue"] += len(queues)
        for queue, groups in answer.body["flags"].items():
            grouped = sorted(pool for group in groups for pool in group["pools"])
            self._equal(f"pools of {queue} by their flags", grouped, sorted(answer.body["pools"][queue]))
            for group in groups:
                for pool in set(group["pools"]) & set(mappings):
                    self._check_flags(mappings[pool][0], queue, group["flags"])

    def _check_flags(
        self, job: Job, queue: str, arguments: Sequence[str], *, sufficient: bool = False
    ) -> None:
        """§4: a node that fulfils the requirements fulfils the flags; and the reverse, where they suffice."""
        if not arguments and not sufficient:
            return
        node = self.world.flags_fault(job.requirements, job.vo, queue, arguments, sufficient=sufficient)
        if node is not None:
            what = (
                f"flags {arguments} of {job.vo} with {job.requirements} at {queue} are wrong of a node with"
            )
            raise Difference(f"{what} {node}; {self._state_of(queue)[:2]}")
        self.done["flags"] += 1

    def _compare_jobs(self) -> None:
        """The status of each job; "No eligible queue" exactly where it has none; §1 "Identity" of pools."""
        ours = {job.id: job for job in self.world.jobs}
        if not ours:
            return
        page = self._get(f"/jobs?limit=1000&ids={','.join(map(str, ours))}")
        shown = {each["job_id"]: each for each in page["jobs"]}
        self._equal("jobs", sorted(shown), sorted(ours))
        for number, job in ours.items():
            if not job.in_flux:
                self._compare_job(job, shown[number])

    def _compare_job(self, job: Job, shown: dict[str, Any]) -> None:
        self._equal(f"status of job {job.id} {job.description}", shown["status"], job.status)
        if job.status == "Waiting":
            stuck = job.requirements is not None and not self.world.mapping(job)
            minor = shown["minor_status"]
            self._equal(f"minor status {minor!r} of {job.description}", minor == "No eligible queue", stuck)
        if job.status not in jobs.FINAL:
            self._learn_pool(job, shown["submit_pool"])

    def _learn_pool(self, job: Job, pool: str | None) -> None:
        """§1 "Identity": equal requirements have one id, those of different records never."""
        if job.requirements is None:
            self._equal(f"pool of {job.description}", pool, None)
            return
        key = configuration.identity(job.requirements, job.vo)
        known = self.pools.get(key)
        if known is None and isinstance(job.requirements, dict) and pool in self.pools.values():
            raise Difference(f"pool {pool} of {job.requirements} is that of other requirements, too")
        self._equal(f"pool of {job.requirements} of {job.vo}", pool, known or pool)
        assert pool is not None
        self.pools[key] = pool

    # ------------------------------------------------------------------ submission

    def do_submit(
        self,
        description: Any,
        *,
        aim: int | None,
        count: int,
        form: str,
        style: int,
        service: int,
        twice: bool,
    ) -> None:
        """Submit equal jobs in some form; with an idempotency key perhaps twice (§5 "Submit")."""
        if aim is not None and isinstance(description.get("Requirements"), dict):
            description = {**description, "Requirements": self._within_reach(description, aim)}
        body = writing.body([description] * count, form, style)
        headers = {"Idempotency-Key": f"{id(self)}-{self.installed.calls}"} if twice else {}
        answer = self._call("POST", "/jobs", body, service=service, headers=headers)
        self._equal(f"submission of {body}: {answer.body}", answer.status, 201)
        ids = answer.body["job_ids"]
        self._equal(f"number of jobs of {body}", len(ids), count)
        if twice:
            again = self._call("POST", "/jobs", body, service=service + 1, headers=headers)
            self._equal("ids of the same submission", again.body["job_ids"], ids)
            other = self._call("POST", "/jobs", {"jdl": '[Executable="y";]'}, headers=headers)
            self._equal("another submission with its key", other.status, 409)
        self.world.jobs += [Job(number, description) for number in ids]
        self.done["jobs submitted"] += count
        self._eventually(self._compare_jobs)
        self._settle()

    def _within_reach(self, description: Any, number: int) -> dict[str, Any]:
        """The same names as far as a queue has them, with its values; else a name that all have."""
        vo = description["VO"]
        queues = [
            q for q in configuration.queues(self.world.tree) if configuration.usable(self.world.tree, q, vo)
        ]
        queue = self._pick(queues, number)
        values = configuration.effective(self.world.tree, queue, vo) if queue else {}
        wanted = {name: values.get(name.lower()) for name in description["Requirements"]}
        plain = {
            n: v for n, v in wanted.items() if v is not None and not isinstance(v, configuration.NodeValues)
        }
        return plain or description["Requirements"]

    def do_refuse(self, body: Any, *, service: int) -> None:
        """§1 "Refused or failed": what is shown to be wrong is refused whole, and nothing stored."""
        newest = self._get("/jobs?limit=1")["jobs"]
        answer = self._call("POST", "/jobs", body, service=service)
        self._equal(f"submission of {body}", answer.status, 400)
        self._equal("newest job", self._get("/jobs?limit=1")["jobs"], newest)

    # ------------------------------------------------------------------ matching

    def do_near(self, resource: Resource, number: int, *, service: int) -> None:
        """List for pilots that offer just enough for a job that waits, and for some that offer too little."""
        for job in self._waiting():
            for each in self._near(job, resource, number):
                self.do_list(each, service=service)

    def do_list(self, resource: Resource, *, service: int) -> None:
        """getMatchingTaskQueues: exactly the jobs that the resource may have now."""
        if not self._is_specified(resource):
            return
        fitting = self.world.fitting(resource)
        if "NodeFacts" in resource:  # without a node nothing is excluded by its facts
            fitting = self.world.on_this_node(resource, fitting)
        # As pilots ask, which fill their slots.
        count = resource.get("NumberOfProcessors", 1)
        wanted = {job.id for job in self.world.admitted(resource, fitting, count=count)}

        def compare() -> None:
            answer = self._call("POST", "/matcher/getMatchingTaskQueues", resource, service=service)
            self._equal(f"listing for {resource}: {answer.body}", answer.status, 200)
            flux = {job.id for job in self.world.jobs if job.in_flux}
            seen = {number for each in answer.body["task_queues"] for number in each["job_ids"]} - flux
            ours = {job.id for job in self.world.jobs}
            if seen & ours != wanted:
                where = self._state_of(self.world._queues_of(resource)[0])
                what = f"listing for {resource}{self._describe(seen ^ wanted)}; {where}"
                self._equal(what, seen & ours, wanted)

        self._eventually(compare)

    def _describe(self, numbers: set[int]) -> str:
        different = [job for job in self.world.jobs if job.id in numbers]
        return "".join(f"\n  {job.id}: {job.description} {job.status}" for job in different)

    def _is_specified(self, resource: Resource) -> bool:
        """Whether the model has an answer: the place exists, and nothing below it is limited."""
        queues = self.world._queues_of(resource)
        if not queues or "Queue" in resource:
            return bool(queues)
        inner = [node for queue in queues for node in configuration.levels(self.world.tree, queue)]
        return not any({"Throttle", "RunningLimit", "NodeAttributes", "VOs"} & set(node) for node in inner)

    def _candidates(self, resource: Resource, count: int = 1) -> list[Job]:
        found = self.world.on_this_node(resource, self.world.fitting(resource))
        return self.world.admitted(resource, found, count=count)

    def do_request(
        self,
        resource: Resource,
        *,
        aim: int | None,
        near: int | None,
        submits: bool,
        count: int,
        service: int,
        started: bool,
    ) -> None:
        """A pilot asks: it gets jobs that it may have, and nothing only where there is none."""
        if near is not None:
            found = [each for job in self._waiting() for each in self._near(job, resource, near)]
            resource = self._pick(found, near) or resource
        elif aim is not None:
            resource = self._generous(resource, aim)
        if submits:
            resource = {**{n: v for n, v in resource.items() if n != "NodeFacts"}, "SubmitFlags": True}
        if self._is_specified(resource) and "Queue" in resource:
            for attempt in self._request(resource, count, service):
                if started:
                    self._start(attempt, service)

    def _generous(self, resource: Resource, number: int) -> Resource:
        """A pilot that offers much, where it gets something; or where a ban, limit or throttle holds."""
        offer = {key: resource[key] for key in ("NodeFacts", "JobType", "WholeNode") if key in resource}
        offer |= GENEROUS
        aimed = [
            {**dict(zip(("Site", "GridCE", "Queue"), queue.split("/"), strict=True)), "VO": vo, **offer}
            for queue in configuration.queues(self.world.tree)
            for vo in ("alpha", "beta")
        ]
        start, closed = number % max(1, len(aimed)), number % 3 == 0
        for each in aimed[start:] + aimed[:start]:
            fitting = self.world.on_this_node(each, self.world.fitting(each))
            admitted = self.world.admitted(each, fitting, count=1)
            if len(admitted) < len(fitting) if closed else admitted:
                return each
        return resource

    def _waiting(self) -> list[Job]:
        """Jobs for which pilots ask, one of each description."""
        return [job for job in self._distinct(self.world.jobs) if job.vo != "hasty" and not job.in_flux]

    def _near(self, job: Job, resource: Resource, number: int) -> list[Resource]:
        """Pilots where a job may run: each offers much, but just enough, or too little, of a need."""
        queues = sorted(self.world.mapping(job))
        if not queues:
            return []
        start = number % len(queues)
        facts = {"NodeFacts": resource["NodeFacts"]} if "NodeFacts" in resource else {}
        aimed = [
            {
                **dict(zip(("Site", "GridCE", "Queue"), queue.split("/"), strict=True)),
                "VO": job.vo,
                **GENEROUS,
                "WholeNode": True,
                **facts,
            }
            for queue in queues[start:] + queues[:start]
        ]
        generous = next((each for each in aimed if job in self._candidates(each)), aimed[0])
        return jobs.near(job.description, generous)

    def _request(self, resource: Resource, count: int, service: int) -> list[Attempt]:
        answers: list[Answer] = []

        def list_those() -> None:
            """Jobs of the last two seconds may be passed over, and those whose check of the node waits."""
            answer = self._call("POST", "/matcher/getMatchingTaskQueues", resource, service=service)
            self._equal(f"listing for {resource}: {answer.body}", answer.status, 200)
            listed = {number for each in answer.body["task_queues"] for number in each["job_ids"]}
            missing = {job.id for job in self._candidates(resource, count)} - listed
            if missing and not resource.get("SubmitFlags", False):
                raise Difference(f"listing for {resource} is without{self._describe(missing)}")

        self._eventually(list_those)

        def ask() -> None:
            answer = self._call("POST", "/matcher/requestJob", {**resource, "count": count}, service=service)
            self._equal(f"request {resource}: {answer.body}", answer.status, 200)
            answers.append(answer)
            if not answer.body["matches"]:
                self._check_nothing(resource, answer.body["reason"], count)

        self._eventually(ask)
        matches = answers[-1].body["matches"]
        queue = "/".join(resource[key] for key in ("Site", "GridCE", "Queue"))
        attempts = []
        for match in matches:
            earlier = self._list_tiers(resource, count) if not attempts else []
            attempts.append(self._check_match(match, resource, queue, count))
            self._check_tier(attempts, earlier)
        if "NumberOfProcessors" in resource and count > 1:
            used = sum(attempt.processors for attempt in attempts)
            if used > resource["NumberOfProcessors"]:
                raise Difference(f"request {resource}: {used} processors in {matches}")
        self.done["matches"] += len(attempts)
        return attempts

    def _list_tiers(self, resource: Resource, count: int) -> list[int]:
        """The tiers of the jobs that a request may get for certain.

        Of those that depend on the node, one that finds its node by submit flags gets only some: those whose
        flags say all.
        """
        return [jobs.tier(self.world.tree, job) for job in self._candidates(resource, count)]

    def _check_tier(self, attempts: Sequence[Attempt], possible: Sequence[int]) -> None:
        """Options, JobScheduling, 2: of the earliest tier; several of one answer in the order of theirs.

        Those after the first must fit beside it, so jobs of an earlier tier may be left.
        """
        tiers = [jobs.tier(self.world.tree, attempt.job) for attempt in attempts[-2:]]
        least = min(possible, default=tiers[0])
        if tiers[0] > least or tiers != sorted(tiers):
            last = attempts[-1].job
            raise Difference(f"job {last.id} {last.description} is of tier {tiers}, there is one of {least}")
        self.done["first of several tiers"] += len(set(possible)) > 1

    def _check_match(self, match: dict[str, Any], resource: Resource, queue: str, count: int) -> Attempt:
        submits = resource.get("SubmitFlags", False)
        found = self.world.fitting(resource)
        on_node = found if submits else self.world.on_this_node(resource, found)
        allowed = {job.id: job for job in self.world.admitted(resource, on_node, count=count)}
        job = allowed.get(match["job_id"])
        if job is None:
            wrong = self._describe({match["job_id"]})
            raise Difference(f"request {resource} got{wrong}, which it may not have; {self._state_of(queue)}")
        if submits and job.requirements is not None:
            self._check_flags(job, queue, match.get("flags") or [], sufficient=True)
        processors = match["processors"]
        if count == 1 or self.world.bounds_cores(job.vo, queue):
            given = jobs.given_cores(job.description, resource, alone=count == 1)
            self._equal(f"cores of {job.description} of {resource}", processors, given)
            self.done["allotments"] += 1
        attempt = self.world.match(job, queue, lease=match["lease"], processors=processors)
        self._equal(f"epoch of job {job.id}", match["epoch"], attempt.epoch)
        return attempt

    def _state_of(self, queue: str) -> Any:
        tree, places = self.world.tree, jobs.places_of(queue)
        return (
            {vo: configuration.effective(tree, queue, vo) for vo in VOS},
            [
                {n: v for n, v in node.items() if n not in {"CEs", "Queues"}}
                for node in configuration.levels(tree, queue)
            ],
            {place: (self.world.advertised.get(place), self.world.reserved(place)) for place in places},
        )

    def _check_nothing(self, resource: Resource, reason: str, count: int) -> None:
        """§2 "Nothing to give": never while a job that fits is free; and the word for it is right."""
        candidates = {job.id for job in self._candidates(resource, count)}
        if candidates:
            said = f"request {resource} got nothing ({reason}) but{self._describe(candidates)}"
            raise Difference(f"{said}\n{self._state_of(self.world._queues_of(resource)[0])}")
        fitting = self.world.fitting(resource)
        true = {
            "no_task_queue": not fitting,
            "not_usable": not fitting,
            "node": len(self.world.on_this_node(resource, fitting)) < len(fitting),
            "throttled": self.world.room(resource) <= 0,
            "banned": bool(fitting) and resource["Site"] in self.world.banned,
            "limits": any(self.world.full(job, resource, count=count) for job in fitting),
        }
        if not true[reason]:
            queue = self.world._queues_of(resource)[0]
            waiting = self._describe({job.id for job in self.world.waiting(resource["VO"])})
            said = f"request {resource} got nothing: {reason} is not true"
            raise Difference(f"{said}; {self._state_of(queue)}{waiting}")
        self.done["nothing proved right"] += 1

    # ------------------------------------------------------------------ attempts and jobs

    def _pick(self, things: Sequence[Any], number: int) -> Any:
        return things[number % len(things)] if things else None

    def _open(self, vo: str | None = None) -> list[Attempt]:
        return [a for a in self.world.attempts if a.is_open and not a.job.in_flux and vo in {None, a.job.vo}]

    def _report(self, attempt: Attempt, kind: str, body: dict[str, Any], service: int) -> Answer:
        return self._call("POST", f"/leases/{attempt.lease}/{kind}", body, service=service)

    def _start(self, attempt: Attempt, service: int) -> bool:
        answer = self._report(attempt, "start", {}, service)
        if answer.status == 409 and attempt.job.vo == "hasty":
            return False  # this machine was slow: its lease is over
        self._equal(f"start of job {attempt.job.id} ({attempt.job.status})", answer.status, 200)
        attempt.started = True
        if attempt.job.status == "Matched":
            attempt.job.status = "Running"
        return True

    def do_start(self, number: int, *, service: int) -> None:
        """Start an open attempt; §5 "repeating the same is answered 200"."""
        attempt = self._pick([a for a in self._open() if a.job.status in {"Matched", "Running"}], number)
        if attempt is not None:
            self._start(attempt, service)

    def do_heartbeat(self, number: int, *, service: int) -> None:
        """A heartbeat of an open attempt is answered; one of a killed job gets the command."""
        attempt = self._pick([a for a in self._open() if a.started], number)
        if attempt is None:
            return
        answer = self._report(attempt, "heartbeat", {}, service)
        self._equal("heartbeat", answer.status, 200)
        killed = attempt.job.status in {"Killed", "Deleted"}
        self._equal(f"commands for job {attempt.job.id}", answer.body["commands"], ["kill"] if killed else [])

    def do_finish(self, number: int, *, service: int, failed: bool) -> None:
        """The payload ends; of a killed job the status stays (§5 "Kill")."""
        attempt = self._pick([a for a in self._open() if a.started], number)
        if attempt is None:
            return
        report = {"exit_code": int(failed), "status": "Failed" if failed else "Done"}
        self._equal(
            f"finish of {attempt.job.id}", self._report(attempt, "finish", report, service).status, 200
        )
        attempt.is_open, attempt.end = False, report
        if attempt.job.status == "Running":
            attempt.job.status = report["status"]
        self.done["finished"] += 1

    def do_release(self, number: int, *, service: int) -> None:
        """A pilot hands an unstarted job back: it waits again, no penalty."""
        attempt = self._pick([a for a in self._open() if a.job.status == "Matched"], number)
        if attempt is None:
            return
        self._equal("release", self._report(attempt, "release", {}, service).status, 200)
        attempt.is_open, attempt.was_released = False, True
        attempt.job.status = "Waiting"
        self._eventually(self._compare_jobs)

    def do_stale(self, number: int, *, kind: str, service: int) -> None:
        """§5 "The fence": a report of a closed attempt is 409 and changes nothing; the same again is 200."""
        attempts = [a for a in self.world.attempts if self._is_closed_for_good(a)]
        attempt = self._pick(attempts, number)
        if attempt is None:
            return
        body = {"exit_code": 7, "status": "Failed"} if kind == "finish" else {}
        answer = self._report(attempt, kind, body, service)
        wanted = 200 if kind == "release" and attempt.was_released else 409
        self._equal(f"{kind} of a closed attempt of job {attempt.job.id}", answer.status, wanted)
        if attempt.end is not None:
            again = self._report(attempt, "finish", attempt.end, service)
            self._equal("the same finish again", again.status, 200)
        self._compare_jobs()

    @staticmethod
    def _is_closed_for_good(attempt: Attempt) -> bool:
        """A lost pilot that comes back before another has the job is heard; those are left out."""
        if attempt.is_open or attempt.job.in_flux:
            return False
        return attempt.end is not None or attempt.was_taken_away or attempt.job.attempts[-1] is not attempt

    def do_kill(self, number: int, *, service: int) -> None:
        """§5 "Kill": Killed at once; the attempt ends by itself. A final job cannot be killed."""
        job = self._pick([job for job in self.world.jobs if not job.in_flux], number)
        if job is None or job.status in {"Killed", "Deleted"}:
            return
        answer = self._call("POST", f"/jobs/{job.id}/kill", {}, service=service)
        self._equal(f"kill of {job.status} job", answer.status, 409 if job.status in jobs.FINAL else 200)
        if answer.ok:
            job.status = "Killed"

    def do_delete(self, number: int, *, service: int) -> None:
        """A job is deleted, and killed before if it has not ended."""
        job = self._pick([job for job in self.world.jobs if not job.in_flux], number)
        if job is not None and job.status != "Deleted":
            answer = self._call("POST", f"/jobs/{job.id}/delete", {}, service=service)
            self._equal(f"delete of {job.status} job", answer.status, 200)
            job.status = "Deleted"

    def do_reschedule(self, number: int, *, service: int) -> None:
        """§5 "States": what may become Rescheduled does, at most three times, and waits again.

        One that was asked for, and that no pilot has got since, is a request that is repeated.
        """
        job = self._pick([job for job in self.world.jobs if not job.in_flux], number)
        if job is None:
            return
        answer = self._call("POST", f"/jobs/{job.id}/reschedule", {}, service=service)
        may = job.status in {"Waiting", "Matched", "Running", "Stalled", "Failed"}
        self._equal(f"reschedule of {job.status} job {answer.body}", answer.status, 200 if may else 409)
        if may and not (job.status == "Waiting" and job.rescheduled_at == len(job.attempts)):
            job.rescheduled_at = len(job.attempts)
            self._take_back(job)
            self._eventually(self._compare_jobs)
            self._settle()

    def _take_back(self, job: Job, *, is_lost: bool = False) -> None:
        attempt = job.open_attempt
        if attempt is not None:
            attempt.is_open = False
            attempt.was_lost, attempt.was_taken_away = is_lost, not is_lost
        job.reschedules += 1
        job.status = "Waiting" if job.reschedules <= 3 else "Failed"

    def do_lose(
        self, resource: Resource, *, aim: int | None, count: int, service: int, started: bool
    ) -> None:
        """Pilots take jobs of `hasty` and are never heard of again; `regain` awaits what follows.

        With `aim` they do so where a throttle lets them in. There it is awaited at once: limits of such a
        place count these jobs until the agents take them back.
        """
        if any(job.in_flux for job in self.world.jobs):
            return
        resource = resource if aim is None else self._where_throttled(resource, aim, count)
        if not self._is_specified(resource):
            return
        self._lose(resource, count, service, started=started)
        throttled = [place for place in self._places_of(resource) if place in self.world.throttled()]
        if throttled:
            self.do_regain()
        for place in throttled:
            self._eventually(lambda place=place: self._compare_reserved(place, service))
            self.done["reservations of lost jobs"] += sum(
                each.was_lost and place not in each.acknowledged for each in self.world.attempts_at(place)
            )

    def _where_throttled(self, resource: Resource, number: int, count: int) -> Resource:
        """The same pilot at a queue with a throttle where it gets something; if there is none, as it is."""
        aimed = [
            {**resource, **dict(zip(("Site", "GridCE", "Queue"), queue.split("/"), strict=True))}
            for queue in configuration.queues(self.world.tree)
            if self.world.throttled().intersection(jobs.places_of(queue))
        ]
        start = number % max(1, len(aimed))
        found = (each for each in aimed[start:] + aimed[:start] if self._candidates(each, count))
        return next(found, resource)

    def _places_of(self, resource: Resource) -> Sequence[str]:
        return jobs.places_of("/".join(resource[key] for key in ("Site", "GridCE", "Queue")))

    def _lose(self, resource: Resource, count: int, service: int, *, started: bool) -> None:
        for attempt in self._request(resource, count, service):
            if started and self._start(attempt, service):
                self._take_back(attempt.job, is_lost=True)
                self.done["pilots lost"] += 1
            else:
                self.done["leases gone"] += 1
            attempt.is_open, attempt.job.in_flux = False, True
            if attempt.job.status == "Matched":
                attempt.job.status = "Waiting"

    def do_regain(self) -> None:
        """The agents take lost jobs back: §5 "Lost" and "Not started in time → back to Waiting"."""
        lost = [job for job in self.world.jobs if job.in_flux]
        for job in lost:
            wanted = (job.status, job.reschedules)

            def compare(job: Job = job, wanted: Any = wanted) -> None:
                shown = self._get(f"/jobs/{job.id}")
                self._equal(f"lost job {job.id}", (shown["status"], shown["reschedules"]), wanted)

            self._eventually(compare)
            job.in_flux = False
        if lost:
            self._settle()

    # ------------------------------------------------------------------ sites

    def do_ban(self, site: str, *, banned: bool, service: int) -> None:
        """Ban a site or allow it again."""
        if site not in self.world.tree["Resources"]["Sites"]:
            return
        verb, body = ("ban", {"reason": "r"}) if banned else ("allow", {})
        answer = self._call("POST", f"/sites/{site}/{verb}", body, service=service)
        self._equal(f"{verb} {answer.body}", answer.status, 200)
        (self.world.banned.add if banned else self.world.banned.discard)(site)

    def do_advertise(self, place: str, values: dict[str, int], *, seen: int, service: int) -> None:
        """§3: a watermark, then the counts of a place, which list some attempts that are on their way."""
        parts = place.split("/")
        path = "/sites/" + "/".join(a + b for a, b in zip(("", "ces/", "queues/"), parts, strict=False))
        mark = self._call("POST", f"{path}/watermark", {}, service=service)
        if mark.status == 404:
            return
        on_their_way = [a for a in self.world.attempts_at(place) if a.is_reserved and not a.started][:seen]
        body = {
            "as_of": mark.body["watermark"],
            "attempts_seen": [attempt.lease for attempt in on_their_way],
            **values,
        }
        answer = self._call("POST", f"{path}/advertisement", body, service=service)
        self._equal(f"advertisement {answer.body}", answer.status, 200)
        self.world.advertise(place, values, on_their_way)

    # ------------------------------------------------------------------ explanations

    def do_explain(self, number: int, *, service: int) -> None:
        """Explanation = matcher: candidates, eligible queues, their list, reasons."""
        job = self._pick([j for j in self.world.jobs if j.status == "Waiting" and not j.in_flux], number)
        if job is not None:
            self._explain(job, service)

    def _explain(self, job: Job, service: int) -> None:
        _, suitable = self.world.suitable_queues(job.description)
        what = f"of job {job.id} {job.description}"

        def compare() -> None:
            ranked = self._get(f"/jobs/{job.id}/queues", service=service)
            seen = {each["queue"] for each in ranked["queues"]}
            values = {q: configuration.effective(self.world.tree, q, job.vo) for q in seen ^ suitable}
            self._equal(f"queues {what}; {values}", seen, suitable)
            shown = self._get(f"/jobs/{job.id}/explain?forwarding=true", service=service)
            self._compare_explanation(what, job.description, shown)
            for each in shown["forwarding"]:
                left = each["left"] is not None
                self._check_flags(
                    job, each["example"], each["flags"], sufficient=each["sufficient"] or not left
                )

        self._eventually(compare)
        self._explain_alone(job.description, service)

    def do_imagine(self, description: Any, *, aim: int, service: int) -> None:
        """Explain a job that nobody submitted: it needs what a queue just offers, or a little more."""
        queue = self._pick(list(configuration.queues(self.world.tree)), aim)
        if queue is None:
            return
        values = configuration.effective(self.world.tree, queue, description["VO"])
        offer = jobs.offer_of_queue(values, queue)
        for number in range(2 * len(jobs.EDGES)):
            self._explain_alone(jobs.at_the_edge(description, offer, number), service)

    def _explain_alone(self, description: Any, service: int) -> None:
        body = writing.body([description], "jdl", 0)

        def compare() -> None:
            alone = self._call("POST", "/explain", body, service=service)
            self._equal(f"explanation of {body} {alone.body}", alone.status, 200)
            self._compare_explanation(f"of {body}", description, alone.body)

        self._eventually(compare)

    def _compare_explanation(self, what: str, description: Any, shown: dict[str, Any]) -> None:
        """Contract "Explain": `reasons` names every failing requirement, with the queues that it excludes."""
        candidates, suitable = self.world.suitable_queues(description)
        numbers = (shown["candidate_queues"], shown["eligible_queues"])
        self._equal(f"explanation {what}", numbers, (len(candidates), len(suitable)))
        seen: Counter[str] = Counter()
        for reason in shown["reasons"]:
            seen[reason["requirement"]] += reason["excluded"]
        wanted = self.world.refused(description, candidates)
        seen = Counter({name: n for name, n in seen.items() if name in wanted})
        values = {q: configuration.effective(self.world.tree, q, description["VO"]) for q in candidates}
        self._equal(
            f"reasons {what}: {shown['reasons']}; {values}",
            dict(seen),
            {n: c for n, c in wanted.items() if c},
        )
        self.done["explanations"] += 1
