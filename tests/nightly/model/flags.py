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
        "Disk": {"min": "Disk", "max": "Disk", "unit": "MB"},
        "Level": {"min": "Level", "max": "Level"},
        "Flag": {"feature": "HasFlag"},
    },
    "Slurm": {
        "Memory": {"min": "mem", "unit": "MB"},
        "Disk": {"min": "tmp", "unit": "MB"},
        "OS": {"features": _SYSTEMS},
        "Level": {"min": "level"},
        "Flag": {"feature": "flagged"},
    },
}
_MAPPED = {"memory", "disk", "os", "level", "flag"}


def is_mappable(node: Mapping[str, Any]) -> bool:
    """Whether the mappings are true of a node: it has numbers, a text and a boolean, or none."""
    kinds = {"os": (str,), "flag": (bool,)}
    return all(
        value is None or type(value) in kinds.get(name, (int, float))
        for name, value in node.items()
        if name in _MAPPED
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
    memory, disk = node.get("memory"), node.get("disk")
    values = {
        "TotalMemory": memory and memory * 1024,  # in kB
        "Disk": disk and disk * 1024,
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


#: What options of Slurm, and a generic resource, ask at least.
_NUMBERS = {"--mem": "memory", "--tmp": "disk", "level": "level"}


def _slurm_takes(node: Mapping[str, Any], argument: str) -> bool:
    option, _, value = argument.partition("=")
    if option == "--gres":
        option, _, value = value.partition(":")
    if option in _NUMBERS:
        has = node.get(_NUMBERS[option])
        return has is not None and float(value.removesuffix("M")) <= has
    assert option == "--constraint", argument
    features = {_system(node), "flagged" if node.get("flag") is True else None}
    parts = [part.strip("()").split("|") for part in re.split(r"&(?![^(]*\))", value)]
    return all(features & set(part) for part in parts)
