"""Storage elements near sites, where jobs can read the replicas of their input files."""

from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping

from cs_config.cache import derived
from cs_config.source.sections import Leaf, as_list
from cs_config.tree.configuration import Configuration
from requirements.values import fold


@derived
def _storage_of_sites(config: Configuration) -> Mapping[str, frozenset[str]]:
    """Map each site to the storage elements that it lists under `SE`; all names are folded."""
    near: dict[str, frozenset[str]] = {}
    for site, section in config.root.section("Resources").section("Sites").sections():
        entry = section.entries.get("SE")
        elements = as_list(entry.value) if isinstance(entry, Leaf) else ()
        near[fold(site)] = frozenset(fold(str(each)) for each in elements if each is not None)
    return near


@derived
def _sites_of_storage(config: Configuration) -> Mapping[str, frozenset[str]]:
    """Map the folded name of each storage element to the sites that list it."""
    near: defaultdict[str, set[str]] = defaultdict(set)
    for site in config.sites:
        for element in _storage_of_sites(config).get(fold(site), ()):
            near[element].add(site)
    return {element: frozenset(names) for element, names in near.items()}


def list_near(config: Configuration, sites: Iterable[str]) -> frozenset[str]:
    """The sites and the storage elements near them, folded: a replica at one of these can be read there."""
    storage = _storage_of_sites(config)
    names = frozenset(map(fold, sites))
    return names.union(*(storage.get(name, ()) for name in names))


def find_common_sites(config: Configuration, replicas: Collection[frozenset[str]]) -> frozenset[str]:
    """The sites near a replica of every file, given the places of each: storage elements or sites."""
    sites_of = _sites_of_storage(config)
    by_file = (
        frozenset(site for place in places for site in sites_of.get(fold(place), frozenset({place})))
        for places in replicas
    )
    return frozenset.intersection(*by_file)
