"""Which sites are near a storage element: the parameter `SE` of the sites."""

from collections import defaultdict
from collections.abc import Mapping

from cs_config.configuration import Configuration
from cs_config.sections import Leaf
from requirements.values import fold


def sites_of_storage(config: Configuration) -> Mapping[str, frozenset[str]]:
    """Folded name of each storage element to the sites that list it under `SE`."""
    near: defaultdict[str, set[str]] = defaultdict(set)
    for site, section in config.root.section("Resources").section("Sites").sections():
        entry = section.entries.get("SE")
        listed = entry.value if isinstance(entry, Leaf) else None
        for element in listed if isinstance(listed, list) else [listed]:
            if element is not None:
                near[fold(str(element))].add(site)
    return {element: frozenset(names) for element, names in near.items()}
