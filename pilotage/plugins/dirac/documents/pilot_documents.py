"""What a pilot of DIRAC offers its Matcher, as a document of the match-making specification.

The other way is how any request in this form is read (`matcher.request.node_document`).

Source: DIRAC 9.1, `JobAgent.py` and `ComputingElement.getDescription`.
"""

from collections.abc import Mapping
from typing import Any, Final

from matcher.request import node_document
from pilotage.plugins.dirac.documents import job_documents
from requirements.diracx.cpu_levels import FEATURES

#: What no pilot of DIRAC states, and each is.
_ASSUMED: Final = {
    "system/name": "Linux",
    "cpu/num_nodes": 1,
    "cpu/num_cores": 1,
    "cpu/architecture/name": "x86_64",
    "cpu/architecture/features": [],
    "gpu/count": 0,
}
#: Of a pilot with the tag for GPUs, which states nothing else of them.
_ASSUMED_OF_GPUS: Final = {
    "gpu/count": 1,
    "gpu/vendor": "nvidia",
    "gpu/arch": "sm_10",
    "gpu/vram_mb_per_gpu": 0,
}


def read_resource(offered: Mapping[str, Any]) -> dict[str, Any]:
    """The document of a node for the dictionary of a pilot; what has no field stands beside it.

    `CPUTime` is normalised: the seconds left are `CPUTime / CPUNormalizationFactor`.
    """
    keywords = dict(offered)
    power = float(keywords.pop("CPUNormalizationFactor", 0)) or 1.0
    fields: dict[str, Any] = _ASSUMED | {
        "cpu_power_db12": power,
        "wall_time": int(float(keywords.pop("CPUTime", 0)) / power),
    }
    tags = list(keywords.get("Tag", ()))
    if job_documents.GPU_TAG in tags:
        fields |= _ASSUMED_OF_GPUS
    if found := job_documents.split_platform(str(keywords.get("Platform", ""))):
        name, level, of_system = found
        features = sorted(FEATURES.get(level, ()))
        fields |= {"cpu/architecture/name": name, "cpu/architecture/features": features}
        tags += of_system
    fields |= {path: keywords.pop(name) for path, name in node_document.FIELDS.items() if name in keywords}
    return {**keywords, **job_documents.nest(fields | {"tags": tags})}
