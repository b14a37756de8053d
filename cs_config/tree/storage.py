"""Storage elements near sites, where jobs can read the replicas of their input files."""

from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping

from cs_config.cache import derived
from cs_config.source.sections import Leaf, as_list
from cs_config.tree.configuration import Configuration
from requirements.values import fold


@derived
def sites_of_storage(config: Configuration) -> Mapping[str, frozenset[str]]:
    """Map the folded name of each storage element to the sites that list it under `SE`."""
    near: defaultdict[str, set[str]] = defaultdict(set)
    for site, section in config.root.section("Resources").section("Sites").sections():
        entry = section.entries.get("SE")
        for element in as_list(entry.value) if isinstance(entry, Leaf) else ():
            if element is not None:
                near[fold(str(element))].add(site)
    return {element: frozenset(names) for element, names in near.items()}


@derived
def _storage_of_sites(config: Configuration) -> Mapping[str, frozenset[str]]:
    near: defaultdict[str, set[str]] = defaultdict(set)
    for element, sites in sites_of_storage(config).items():
        for site in sites:
            near[fold(site)].add(element)
    return {site: frozenset(elements) for site, elements in near.items()}


def list_near(config: Configuration, sites: Iterable[str]) -> frozenset[str]:
    """The sites and the storage elements near them, folded: a replica at one of these can be read there."""
    storage = _storage_of_sites(config)
    names = frozenset(map(fold, sites))
    return names.union(*(storage.get(name, ()) for name in names))


def find_common_sites(config: Configuration, replicas: Collection[frozenset[str]]) -> frozenset[str]:
    """The sites near a replica of every file, given the places of each: storage elements or sites."""
    sites_of = sites_of_storage(config)
    by_file = (
        frozenset(site for place in places for site in sites_of.get(fold(place), frozenset({place})))
        for places in replicas
    )
    return frozenset.intersection(*by_file)
