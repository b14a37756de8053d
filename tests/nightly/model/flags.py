"""Flags for batch systems: what a site maps, and whether a node fulfils flags.

§4 "Node attributes and forwarding": `residue ⇒ flags`, and what runs satisfies the whole requirement. The
mappings are those of the site administrators' documents; a node has what its attributes are mapped to.
"""

import re
from collections.abc import Mapping, Sequence
from typing import Any

import classad2

#: Texts of the mappings for values of `OS`; a node with another value has another text.
_SYSTEMS = {"el8": "rocky8", "el9": "rocky9"}
#: Mappings by vocabulary.
FORWARDINGS: dict[str, dict[str, Any]] = {
    "HTCondor": {
        "Memory": {"min": "TotalMemory", "max": "TotalMemory", "unit": "MB", "in": "kB"},
        "OS": {"equal": "OpSys", "values": _SYSTEMS},
        "Level": {"min": "Level", "max": "Level"},
        "Flag": {"feature": "HasFlag"},
    },
    "Slurm": {
        "Memory": {"min": "mem", "unit": "MB"},
        "OS": {"features": _SYSTEMS},
        "Level": {"min": "level"},
        "Flag": {"feature": "flagged"},
    },
}


def is_mappable(node: Mapping[str, Any]) -> bool:
    """Whether the mappings are true of a node: it has numbers, a text and a boolean, or none."""
    kinds = {"memory": (int, float), "level": (int, float), "os": str, "flag": bool}
    return all(
        value is None or (isinstance(value, kinds[name]) and (name == "flag" or not isinstance(value, bool)))
        for name, value in node.items()
        if name in kinds
    )


def fulfils(node: Mapping[str, Any], arguments: Sequence[str]) -> bool:
    """Whether the batch system may take a node (its attributes by names in lower case) for some flags."""
    if arguments and arguments[0] == "-append":
        return _condor_takes(node, arguments)
    return all(_slurm_takes(node, argument) for argument in arguments)


def _system(node: Mapping[str, Any]) -> str | None:
    system = node.get("os")
    return system and _SYSTEMS.get(system.lower(), "other")


def _condor_takes(node: Mapping[str, Any], arguments: Sequence[str]) -> bool:
    memory = node.get("memory")
    values = {
        "TotalMemory": memory and memory * 1024,
        "OpSys": _system(node),
        "Level": node.get("level"),
        "HasFlag": node.get("flag"),
    }
    ad = classad2.ClassAd({name: value for name, value in values.items() if value is not None})
    for option, argument in zip(arguments[::2], arguments[1::2], strict=True):
        name, _, condition = argument.partition(" = ")
        assert (option, name) == ("-append", "requirements"), arguments
        ad["Condition"] = classad2.ExprTree(condition.replace("TARGET.", ""))
        if ad.eval("Condition") is not True:
            return False
    return True


def _slurm_takes(node: Mapping[str, Any], argument: str) -> bool:
    option, _, value = argument.partition("=")
    if option == "--mem":
        return bool(node.get("memory") is not None and float(value.removesuffix("M")) <= node["memory"])
    if option == "--gres":
        word, _, least = value.partition(":")
        assert word == "level", argument
        return bool(node.get("level") is not None and float(least) <= node["level"])
    assert option == "--constraint", argument
    features = {_system(node), "flagged" if node.get("flag") is True else None}
    parts = [part.strip("()").split("|") for part in re.split(r"&(?![^(]*\))", value)]
    return all(features & set(part) for part in parts)
