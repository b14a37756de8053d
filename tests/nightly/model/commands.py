"""Random commands: what is drawn, and how often."""

import random
from typing import Any

from tests.nightly.model.flags import FORWARDINGS
from tests.nightly.model.harness import OPERATIONS
from tests.nightly.model.machine import Command
from tests.nightly.model.world import ADMISSIONS
from tests.nightly.model.writing import FORMS

SITES = ("S1@.x", "S2@.x")
#: Where pilots of `hasty` get lost: no throttle, no limit; and where a throttle lets them in.
LOST = "L@.x"
QUEUES = ("S1@.x/ce/q", "S1@.x/ce/r", "S1@.x/cf/q", "S2@.x/ce/q", "S2@.x/cf/r", f"{LOST}/ce/q")

#: Parameters of queues, and values that they may have.
PARAMETERS: dict[str, list[Any]] = {
    "Memory": [1000, 2000, 4000, 2000.5, [1000, 4000], "2000", None],
    "OS": ["el8", "EL8", "el9", ["el8", "el9"], ["el9"], None],
    "Level": [1, 2, 5, 5.0, "5", True, [1, 5], [5], "high", None],
    "Flag": [True, False, 1, "true", None],
    "SoftwareTag": [["v1"], ["v1", "v2"], ["V2", "v3"], ["v3", "v1"], None],
    "Country": ["DE", "de", "FR", None],
    "MaxRAM": [1000, 2000, 8000],
    "Tag": [["ta"], ["TB"], ["ta", "tc"], "tc", None],
    "RequiredTag": [["ta"], [], [], [], []],
    "NumberOfProcessors": [1, 2, 8],
    "GPUs": [0, 1, 2],
    "CPUTime": [3600, 86400, 10**6],
    "Platform": ["el8", ["el9", "EL8"], None],
    "WholeNode": [True, False],
    "Requirements": [*ADMISSIONS, None, None, None, None, None, None],
}
#: Values that differ for the configuration and for jobs.
TEMPORARY: dict[str, list[Any]] = {
    "Memory": [1000, 2000, 4000],
    "OS": ["el8", "el9", ["el8", "el9"]],
    "Level": [1, 2, 5],
    "MaxRAM": [1000, 2000, 8000],
}
#: Values that jobs require of the parameters whose name is the site's own.
REQUIRED: dict[str, list[Any]] = {
    "Memory": [1000, 1500, 2000, 2000.0, 2000.5, 4000, [1000, 2000]],
    "OS": ["el8", "EL9", ["el8", "el7"], ["el9"], ["EL8", "el8"], "el7"],
    "Level": [1, 2, 5, "5", True, [5, 1], [5, "5"], 4.5],
    "Flag": [True, False, 1, "TRUE"],
    "SoftwareTag": ["v1", ["v1", "v2"], ["v2", "V3"], ["v3", "v3"]],
    "FreeCPUs": [1, 10],
    "Absent": [1, "x"],
}
DECLARATIONS: dict[str, list[dict[str, Any]]] = {
    "Memory": [{"type": "number"}, {"type": "number", "resource": "MaxRAM"}, {"resource": "MaxRAM"}],
    "SoftwareTag": [{"type": "list", "match": "all"}, {"type": "list", "match": "any"}],
    "OS": [{"type": "list", "match": "all"}, {"resource": "Platform", "type": "list"}],
}
NODE_ATTRIBUTES: dict[str, list[Any]] = {
    "OS": [["el8", "el9"], ["el8", "el9", None], "unknown", None],
    "Memory": [[1000, 2000], "unknown", None],
    "Level": [[1, 5], "unknown", None],
    "Flag": [[True, False], "unknown", None],
    "Disk": [[100, 200], [100, 200, None], "unknown", "unknown"],
}
#: What pilots measure: all of it, or nothing.
FACTS = {
    "OS": ["el8", "el9"],
    "Memory": [1000, 2000],
    "Level": [1, 5],
    "Disk": [100, 200],
    "Flag": [True, False],
}
VO_LISTS = (["alpha", "hasty"], ["Beta", "ALPHA"], ["beta", "Hasty"], ["ALPHA", "beta", "hasty"])
POLICIES = {
    "level0": ("MaxSubmittingJobs",),
    "level1": ("MaxSubmittingAndOutputGatheringJobs",),
    "level2": ("MaxJobs", "MaxSubmittingAndOutputGatheringJobs"),
    "brokering": ("MaxJobs", "MaxSubmittingJobs"),
    "pending": ("MaxPendingJobs",),
    "simple": ("MaxJobs",),
}
#: Orders of job types.
TIERS = (
    ["MC"],
    ["user", "Mc"],
    ["Test", "MC", "User"],
    ["{mc: 2, Test: 1}", "User"],
    ["Absent", "{User: 1}"],
)
ADVERTISED = ("CurrentJobs", "CurrentSubmittingJobs", "CurrentGatheringOutputJobs", "CurrentPendingJobs")
#: Submissions that show by themselves that they are wrong.
WRONG: list[dict[str, Any]] = [
    {"CPUTime": "abc"},
    {"CPUTime": -1},
    {"Priority": 11},
    {"Memroy": 5},
    {"MinRAM": -5},
    {"Requirements": "other.Memory >"},
    {"Requirements": "0x10 > other.Memory"},
    {"Requirements": "random() > 0.5"},
    {"Requirements": {"Memory": 1, "memory": 2}},
    {"Requirements": {"Memory": 99999999999999999999}},
    {"MinNumberOfProcessors": 3, "MaxNumberOfProcessors": 2},
    {"Arguments": "{events}"},
    {"Executable": ""},
]
#: How often each command is drawn.
WEIGHTS = {
    "submit": 20,
    "edit": 20,
    "request": 42,
    "list": 6,
    "near": 4,
    "explain": 10,
    "imagine": 4,
    "finish": 5,
    "start": 3,
    "heartbeat": 3,
    "release": 2,
    "stale": 6,
    "kill": 4,
    "reschedule": 5,
    "delete": 2,
    "ban": 3,
    "advertise": 6,
    "refuse": 3,
    "lose": 3,
    "regain": 1,
    "temporary": 1,
}


class Drawing:
    """Draws the commands of one run; the same number gives the same commands."""

    def __init__(self, seed: str) -> None:
        self._random = random.Random(seed)
        self._throttled: list[str] = []

    def commands(self, count: int) -> list[Command]:
        """A configuration, and commands from there."""
        first = {"do": "configure", "tree": self._tree()}
        kinds = self._random.choices(list(WEIGHTS), list(WEIGHTS.values()), k=count)
        return [first, *({"do": kind, **getattr(self, f"_{kind}")()} for kind in kinds)]

    def _one(self, values: Any) -> Any:
        return self._random.choice(list(values))

    def _maybe(self, chance: float) -> bool:
        return self._random.random() < chance

    def _number(self) -> int:
        return self._random.randrange(10**6)

    def _service(self) -> dict[str, int]:
        return {"service": self._random.randrange(2)}

    # ------------------------------------------------------------------ configuration

    def _tree(self) -> dict[str, Any]:
        sites: dict[str, Any] = {}
        for address in QUEUES:
            site, ce, queue = address.split("/")
            at_site = sites.setdefault(site, {**self._parameters(2), "CEs": {}})
            at_ce = at_site["CEs"].setdefault(ce, {**self._in_lower_case(self._parameters(1)), "Queues": {}})
            at_queue = at_ce["Queues"][queue] = self._parameters(6)
            self._decorate(at_site)
            self._decorate(at_ce, in_lower_case=True)
            self._decorate(at_queue)
            at_ce |= self._in_lower_case(self._removed(at_site, at_ce))
            at_queue |= self._removed({**at_site, **at_ce}, at_queue)
        for site in SITES:
            if self._maybe(0.25):
                sites[site]["Throttle"] = self._throttle()
                self._throttled.append(site)
            if self._maybe(0.7):
                sites[site] |= self._limits()
        return {"Operations": OPERATIONS, "Resources": {"Sites": sites}}

    def _decorate(self, node: dict[str, Any], *, in_lower_case: bool = False) -> None:
        """Add what is not just a parameter of one level."""
        if self._maybe(0.1):
            node["VO"] = self._one(VO_LISTS)
        if self._maybe(0.2):
            node["NodeAttributes"] = self._node_attributes()
        if self._maybe(0.4):
            node["Forwarding"] = self._forwarding()
        tags = {}
        if self._maybe(0.3):
            tags["Tag"] = self._one(value for value in PARAMETERS["Tag"] if value)
        if self._maybe(0.15):
            tags["RequiredTag"] = self._one((["ta"], ["tb"], []))
        node.update(self._in_lower_case(tags) if in_lower_case else tags)

    def _node_attributes(self) -> dict[str, Any]:
        names = self._random.sample(sorted(NODE_ATTRIBUTES), self._one([1, 2, 3]))
        return {name: self._one(v for v in NODE_ATTRIBUTES[name] if v is not None) for name in names}

    def _forwarding(self) -> dict[str, Any] | None:
        vocabulary = self._one([*sorted(FORWARDINGS), *sorted(FORWARDINGS), None])
        return vocabulary and {"Vocabulary": vocabulary, "Attributes": FORWARDINGS[vocabulary]}

    def _removed(self, above: dict[str, Any], node: dict[str, Any]) -> dict[str, Any]:
        """What a level removes of that which it inherits, by null."""
        inherited = {name.lower() for name in above} - {name.lower() for name in node}
        return {name: None for name in PARAMETERS if name.lower() in inherited and self._maybe(0.15)}

    def _parameters(self, count: int) -> dict[str, Any]:
        names = self._random.sample(sorted(set(PARAMETERS) - {"Requirements"}), count)
        return {name: self._one(v for v in PARAMETERS[name] if v is not None) for name in names}

    @staticmethod
    def _in_lower_case(parameters: dict[str, Any]) -> dict[str, Any]:
        """Names are compared without case; those of CEs are all in lower case, of one level in one way."""
        return {name.lower(): value for name, value in parameters.items()}

    def _throttle(self) -> dict[str, Any]:
        policy = self._one(POLICIES)
        stale = {"Stale": "open"} if self._maybe(0.3) else {}
        limits = {name: self._random.randint(2, 6) for name in POLICIES[policy]}
        return {"Policy": policy, "Lifetime": 10**6, **stale, **limits}

    def _limited(self) -> tuple[str, str]:
        return self._one(
            [("JobType", "MC"), ("JobType", "MC"), ("Owner", "ada"), ("OwnerGroup", "alpha_prod")]
        )

    def _limits(self) -> dict[str, Any]:
        attribute, value = self._limited()
        if self._maybe(0.25):
            attribute, value = "VO", self._one(("alpha", "beta"))
        if self._maybe(0.7):
            return {"RunningLimit": {attribute: {value: self._bounds((1, 2))}}}
        burst = {"Burst": {attribute: {value: self._random.randint(1, 3)}}}
        return {"MatchingDelay": {attribute: {value: 10**7}, **burst}}

    def _bounds(self, jobs: tuple[int, ...]) -> int | dict[str, int]:
        """A limit on jobs, on cores, or on both."""
        count, cores = self._one(jobs), self._one((1, 2, 3, 5, 8, 9))
        return self._one((count, {"cores": cores}, {"count": count, "cores": cores}))

    def _edit(self) -> dict[str, Any]:
        kind = self._one(
            ["value"] * 6
            + [
                "vo",
                "vo",
                "access",
                "access",
                "declare",
                "node",
                "node",
                "limit",
                "limit",
                "order",
                "order",
                "dynamic",
                "null",
                "null",
                "forwarding",
                "queue",
                "throttle",
            ]
        )
        edit = getattr(self, f"_edit_{kind}")()
        if self._maybe(0.25):
            other = self._edit_value()
            edited = [*edit.get("set", {}), *edit.get("remove", [])]
            if not any(f"{path}/".startswith(f"{each}/") for path in other["set"] for each in edited):
                edit = {**edit, "set": {**edit.get("set", {}), **other["set"]}}
        return {"edit": edit, **self._service(), "whole": self._maybe(0.2)}

    def _path(self, depth: int | None = None) -> tuple[str, int]:
        """The path of a node: of a site, a CE or a queue."""
        site, ce, queue = self._one(QUEUES).split("/")
        depth = self._random.randrange(3) if depth is None else depth
        return "/".join(
            ["Resources/Sites", site, *["CEs", ce][: 2 * (depth > 0)], *["Queues", queue][: 2 * (depth > 1)]]
        ), depth

    def _edit_value(self) -> dict[str, Any]:
        path, depth = self._path()
        if self._maybe(0.3):
            path += f"/VOs/{self._one(('alpha', 'beta'))}"
        name = self._one(PARAMETERS)
        value = self._one(PARAMETERS[name])
        return {"set": {f"{path}/{name.lower() if depth == 1 else name}": value}}

    def _temporary(self) -> dict[str, Any]:
        path, depth = self._path()
        name = self._one(TEMPORARY)
        values = self._random.sample(TEMPORARY[name], 2)
        path = f"{path}/{name.lower() if depth == 1 else name}"
        return {"path": path, "values": values, "is_within": self._maybe(0.7), **self._service()}

    def _edit_vo(self) -> dict[str, Any]:
        path, _ = self._path()
        return {
            "set": {
                f"{path}/VOs/{self._one(('alpha', 'beta'))}/{self._one(('Memory', 'Level'))}": self._one(
                    [None, 1, 5, 4000]
                )
            }
        }

    def _edit_access(self) -> dict[str, Any]:
        path, _ = self._path()
        name, value = self._one(
            [*(("VO", names) for names in (*VO_LISTS, [])), ("Enabled", False), ("Enabled", True)]
        )
        return {"remove": [f"{path}/{name}"]} if self._maybe(0.3) else {"set": {f"{path}/{name}": value}}

    def _edit_declare(self) -> dict[str, Any]:
        name = self._one(DECLARATIONS)
        path = f"Operations/{self._one(('Defaults', 'alpha', 'beta'))}/JobDescription/{name}"
        return {"remove": [path]} if self._maybe(0.3) else {"set": {path: self._one(DECLARATIONS[name])}}

    def _edit_node(self) -> dict[str, Any]:
        path, _ = self._path()
        name = self._one(NODE_ATTRIBUTES)
        return {"set": {f"{path}/NodeAttributes/{name}": self._one(NODE_ATTRIBUTES[name])}}

    def _edit_null(self) -> dict[str, Any]:
        path, depth = self._path(self._one((1, 2)))
        name = self._one(("Memory", "OS", "Level", "Flag", "SoftwareTag"))
        return {"set": {f"{path}/{name.lower() if depth == 1 else name}": None}}

    def _edit_forwarding(self) -> dict[str, Any]:
        path, _ = self._path()
        return {"set": {f"{path}/Forwarding": self._forwarding()}}

    def _edit_limit(self) -> dict[str, Any]:
        attribute, value = self._limited()
        site = self._one(SITES)
        place = self._one(
            [f"Resources/Sites/{site}/", f"Resources/Sites/{site}/CEs/ce/"]
            + [f"Operations/{scope}/JobScheduling/" for scope in ("Defaults", "alpha", "beta")]
        )
        at = f"{site}/" if place.startswith("Operations") else ""
        value = value.lower() if place.endswith("/CEs/ce/") else value
        path = f"{place}RunningLimit/{at}{attribute}/{value}"
        return {"remove": [path]} if self._maybe(0.2) else {"set": {path: self._bounds((0, 1, 1, 2, 2, 3))}}

    def _edit_order(self) -> dict[str, Any]:
        path = f"Operations/{self._one(('Defaults', 'alpha', 'beta'))}/JobScheduling/JobPriorities"
        return {"remove": [path]} if self._maybe(0.2) else {"set": {path: self._one(TIERS)}}

    def _edit_dynamic(self) -> dict[str, Any]:
        path, _ = self._path()
        expired = self._maybe(0.5)
        times = {"update_time": 1000 if expired else 2 * 10**9, "expiry_time": 100000}
        values = {"FreeCPUs": self._one([5, 50]), **times}
        return {"set": {f"{path}/{name}": value for name, value in values.items()}}

    def _edit_queue(self) -> dict[str, Any]:
        path, _ = self._path(2)
        return {"remove": [path]} if self._maybe(0.3) else {"set": {path: self._parameters(3)}}

    def _edit_throttle(self) -> dict[str, Any]:
        place = self._one(["S1@.x", "S2@.x", "S1@.x/ce", "S1@.x/ce/q"])
        path = (
            "Resources/Sites/" + place.replace("/", "/CEs/", 1).replace("ce/", "ce/Queues/", 1) + "/Throttle"
        )
        self._throttled.append(place)
        return {"set": {path: self._throttle()}}

    # ------------------------------------------------------------------ jobs

    def _description(self) -> dict[str, Any]:
        vo = self._one(["alpha"] * 4 + ["beta"] * 3 + ["hasty"])
        description = {
            "Executable": "x",
            "VO": vo,
            "Owner": self._one(("ada", "bob")),
            "OwnerGroup": f"{vo}_{self._one(('user', 'prod'))}",
            **self._keywords(),
            **self._requirements(),
        }
        if vo == "hasty":
            description = {n: v for n, v in description.items() if n not in {"Site", "BannedSites", "GridCE"}}
        return description

    def _imagine(self) -> dict[str, Any]:
        return {"description": self._description(), "aim": self._number(), **self._service()}

    def _submit(self) -> dict[str, Any]:
        return {
            "description": self._description(),
            "aim": self._number() if self._maybe(0.6) else None,
            "form": self._one(FORMS),
            "count": self._one([1, 2, 4, 8]),
            "style": self._number(),
            **self._service(),
            "twice": self._maybe(0.1),
        }

    def _keywords(self) -> dict[str, Any]:
        options = {
            "Site": [["S1@.x"], ["s1@.X", "S2@.x"], ["Nowhere.x"]],
            "BannedSites": [["S2@.x"], ["s1@.x"]],
            "GridCE": [["ce"]],
            "Platform": [["el8"], ["EL9"]],
            "JobType": ["MC", "User", "Test", "mc"],
            "Tags": [["ta"], ["tb"], ["TA", "tc"]],
            "CPUTime": [100, 3600, 86400, 400000],
            "MinRAM": [500, 1500, 4000],
            "NumberOfProcessors": [1, 2, 4],
            "GPUs": [1, 2],
            "WholeNode": [True],
        }
        chosen = self._random.sample(sorted(options), self._one([0, 0, 0, 1, 1, 2, 3]))
        drawn = {name: self._one(options[name]) for name in chosen}
        if "Site" in drawn:
            drawn.pop("BannedSites", None)  # a contradiction is another matter
        if "NumberOfProcessors" in drawn:
            drawn.pop("WholeNode", None)
        elif "WholeNode" not in drawn and self._maybe(0.2):
            drawn |= self._one(
                [
                    {"MinNumberOfProcessors": 1},
                    {"MinNumberOfProcessors": 2},
                    {"MinNumberOfProcessors": 1, "MaxNumberOfProcessors": 3},
                ]
            )
        if "MinRAM" in drawn and self._maybe(0.4):
            drawn["MinRAMPerCore"] = 500
        if self._maybe(0.5):
            drawn["JobType"] = self._one(options["JobType"])  # decides the order
        return drawn

    def _requirements(self) -> dict[str, Any]:
        chance = self._random.random()
        if chance < 0.3:
            return {}
        if chance < 0.45:
            return {"Requirements": self._of_nodes(self._one((1, 2)))}
        if chance < 0.65:
            expression = self._leaf() if self._maybe(0.3) else self._expression(self._one((1, 2, 3)))
            return {"Requirements": expression}
        names = self._random.sample(sorted(REQUIRED), self._one([1, 1, 1, 2, 3]))
        record = {name: self._one(REQUIRED[name]) for name in names}
        return {"Requirements": record}

    def _expression(self, depth: int) -> list[Any]:
        kind = self._one(["and", "or", "not", "if", "leaf", "leaf"]) if depth else "leaf"
        if kind == "leaf":
            return self._safe_leaf()
        parts = {"and": 2, "or": 2, "not": 1, "if": 3}[kind]
        return [kind, *(self._expression(depth - 1) for _ in range(parts))]

    def _of_nodes(self, depth: int, *, in_or: bool = False) -> list[Any]:
        """What some nodes may fulfil; within an `or` it is never Error, whatever an unknown disk is."""
        if depth and self._maybe(0.3):
            return ["and", self._of_nodes(depth - 1, in_or=in_or), self._disk(in_or=in_or)]
        if depth:
            return ["or", self._of_nodes(depth - 1, in_or=True), self._of_nodes(0, in_or=True)]
        name = self._one(("Disk", "OS", "Flag", "Level"))
        if name == "Disk":
            return self._disk(in_or=in_or)
        values = {"OS": ["el8", "el9"], "Flag": [True], "Level": [1, 5]}
        return ["=?=", name, self._one(values[name])]

    def _disk(self, *, in_or: bool) -> list[Any]:
        operator, amount = self._one((">=", ">")), self._one((50, 100, 150.5, 200, 1000))
        return ["=?=" if in_or else operator, "Disk", amount]

    def _safe_leaf(self) -> list[Any]:
        """A comparison that is never Error: only for these §4 promises that an order does not matter."""
        name = self._one(
            ("OS", "Level", "Flag", "SoftwareTag", "FreeCPUs", "MaxRAM", "Country", "Memory", "Absent")
        )
        if name == "SoftwareTag":
            return ["member", name, self._one(("v1", "V2", "v3"))]
        if name == "Country":
            return self._one([["==", name, "de"], ["!=", name, "DE"], ["=?=", name, "DE"]])
        if name in {"FreeCPUs", "MaxRAM", "Absent"}:
            return [
                self._one((">=", ">", "<", "<=", "==", "!=")),
                name,
                self._one((1, 5, 1000, 2000, 2000.5)),
            ]
        values = {"OS": ["el8"], "Flag": [True, 1], "Level": [1, 5, "5"], "Memory": [1000, 2000]}
        return self._one([["=?=", name, self._one(values[name])], ["undefined", name]])

    def _leaf(self) -> list[Any]:
        """Any comparison; Error is not true."""
        name = self._one(("Memory", "OS", "Level", "Flag"))
        if name == "OS":
            return self._one([["==", name, "EL8"], ["!=", name, "el8"], ["member", name, "el8"]])
        if name == "Flag":
            return ["==", name, True]
        operator = self._one((">=", ">", "<", "<=", "==", "!=", "=?="))
        return [operator, name, self._one((1, 2, 5, 1000, 2000, 2000.5))]

    def _refuse(self) -> dict[str, Any]:
        good = {"Executable": "x", "VO": "alpha", "Owner": "ada"}
        return {"body": {"jobs": [good, {**good, **self._one(WRONG)}]}, **self._service()}

    # ------------------------------------------------------------------ pilots

    def _resource(self, vo: str | None = None, queue: str | None = None) -> dict[str, Any]:
        site, ce, name = (queue or self._one(QUEUES)).split("/")
        resource = {
            "Site": site,
            "GridCE": ce,
            "Queue": name,
            "VO": vo or self._one(("alpha", "beta")),
            "CPUTime": self._one([10**7, 10**7, 5000]),
        }
        options = {
            "Tag": [["ta"], ["ta", "TB", "tc"], ["ta", "tb", "tc"]],
            "NumberOfProcessors": [1, 2, 8, 8],
            "MaxRAM": [1000, 16000],
            "GPUs": [1, 2],
            "Platform": ["el8", "EL9"],
            "JobType": ["MC"],
            "RequiredTag": [["ta"]],
        }
        for key in self._random.sample(sorted(options), self._one([0, 1, 2, 4])):
            resource[key] = self._one(options[key])
        if "RequiredTag" in resource:
            resource["Tag"] = ["ta", "tb"]
        if self._maybe(0.15):
            resource |= {"WholeNode": True, "NumberOfProcessors": 8}
        if self._maybe(0.7):
            resource["NodeFacts"] = {name: self._one(values) for name, values in FACTS.items()}
        return resource

    def _list(self) -> dict[str, Any]:
        return {"resource": self._resource(), **self._service()}

    def _near(self) -> dict[str, Any]:
        return {"resource": self._resource(), "number": self._number(), **self._service()}

    def _request(self) -> dict[str, Any]:
        return {
            "resource": self._resource(),
            "aim": self._number() if self._maybe(0.8) else None,
            "near": self._number() if self._maybe(0.2) else None,
            "submits": self._maybe(0.1),
            "count": self._one([1, 1, 2, 3, 4]),
            **self._service(),
            "started": self._maybe(0.6),
        }

    def _lose(self) -> dict[str, Any]:
        site, ce, name = f"{LOST}/ce/q".split("/")
        resource = {"Site": site, "GridCE": ce, "Queue": name, "VO": "hasty", "CPUTime": 10**7}
        resource |= {"NumberOfProcessors": 8, "Tag": ["ta", "tb", "tc"], "GPUs": 2}
        aim = self._number() if self._maybe(0.6) else None
        return {"resource": resource, "aim": aim, "count": 3, **self._service(), "started": self._maybe(0.6)}

    def _regain(self) -> dict[str, Any]:
        return {}

    def _numbered(self) -> dict[str, Any]:
        return {"number": self._number(), **self._service()}

    _start = _heartbeat = _release = _kill = _delete = _reschedule = _explain = _numbered

    def _finish(self) -> dict[str, Any]:
        return {**self._numbered(), "failed": self._maybe(0.3)}

    def _stale(self) -> dict[str, Any]:
        return {**self._numbered(), "kind": self._one(("start", "heartbeat", "finish", "release"))}

    def _ban(self) -> dict[str, Any]:
        return {"site": self._one(SITES), "banned": self._maybe(0.5), **self._service()}

    def _advertise(self) -> dict[str, Any]:
        values = {name: self._one((0, 0, 1, 2)) for name in ADVERTISED}
        place = self._one(self._throttled or SITES)
        return {"place": place, "values": values, "seen": self._random.randrange(3), **self._service()}
