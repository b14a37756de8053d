"""What a batch system is asked for a pilot, by the requirement class of the jobs that it is sent for.

A site maps what nodes have to words of its batch system (`Forwarding`, `requirements.nodes.site_mapping`).
The rows below name what a class may need of it, each under the name by which sites map it. Which of a site's
values will do is decided by the conditions of matching themselves, for a node that has this value alone.
"""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Final

from cs_config.cache import Cache
from cs_config.tree.address import QueueAddress
from cs_config.tree.configuration import Configuration
from matcher import rules
from matcher.conditions import BY_NAME, COLUMNS
from matcher.request.node_keywords import read_node
from requirements import images
from requirements.column_index import SingleItem
from requirements.diracx import tag_expression
from requirements.diracx.cpu_levels import FEATURES
from requirements.nodes.flags import render_clauses
from requirements.nodes.lrms_rendering import Term
from requirements.nodes.lrms_vocabulary import ConditionForm
from requirements.nodes.node_terms import NodeTerms
from requirements.nodes.site_mapping import Meaning, SiteMapping
from requirements.requirement_class import RequirementClass
from requirements.resource import Resource
from requirements.values import Scalar, fold

Flags = tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeNeed:
    """What a class may need of a node."""

    attribute: str  #: under which sites map it
    asks: str  #: for the documentation
    #: Of `matcher.conditions`: a value will do where all of them hold.
    conditions: tuple[str, ...]
    #: Classes with one demand each, which a node has to fulfil all.
    split: Callable[[RequirementClass], Iterable[RequirementClass]]
    offer: Callable[[Scalar], Resource]  #: a node with a value, and nothing else
    is_amount: bool = False  #: so that a word may stand for "at least"

    def list_fitting(self, part: RequirementClass, values: Iterable[tuple[Scalar, str]]) -> frozenset[str]:
        """The site's texts of the values that will do."""
        return frozenset(text for value, text in values if _will_do(self, part, value))

    def read_amount(self, part: RequirementClass) -> int:
        """The number that is needed."""
        need = BY_NAME[self.conditions[0]].need
        return 0 if need is None else need(part)


@lru_cache(maxsize=20_000)
def _will_do(need: NodeNeed, part: RequirementClass, value: Scalar) -> bool:
    """Whether a node with a value fulfils a demand. Cached: sites map the same values."""
    single, node = SingleItem(part, COLUMNS), need.offer(value)
    return all(BY_NAME[name].select(single, node) for name in need.conditions)


def _isolate(**demand: Any) -> RequirementClass:
    return RequirementClass(vo="", cpu_time=0, **demand)


def _split_features(asked: RequirementClass) -> Iterator[RequirementClass]:
    return (_isolate(cpu_features=frozenset({each})) for each in sorted(asked.cpu_features))


def _split_tags(asked: RequirementClass) -> Iterator[RequirementClass]:
    """The tags of the job, and those without which its expression is never true."""
    for tag in sorted(rules.sort_tags(asked.tags).plain):
        yield _isolate(tags=frozenset({tag}))
    for tag in sorted(images.list_tags(asked.image)):
        yield _isolate(tag_expression=tag)
    text = asked.tag_expression
    for tag in sorted(tag_expression.list_tags(text)) if text else ():
        if tag_expression.requires_one(text, tag.__eq__):
            yield _isolate(tag_expression=tag)


def _offer_tag(value: Scalar) -> Resource:
    tag = str(value)
    return Resource(cpu_time=0, tags=frozenset({fold(tag)}), literal_tags=frozenset({tag}))


def _offer_level(value: Scalar) -> Resource:
    return Resource(cpu_time=0, cpu_features=FEATURES.get(fold(str(value)), frozenset()))


def _need(attribute: str, field: str, asks: str, **more: Any) -> NodeNeed:
    """A need that is one field of a class, and a keyword of a pilot's request with the value."""

    def split(asked: RequirementClass) -> Iterator[RequirementClass]:
        if value := getattr(asked, field):
            yield _isolate(**{field: value})

    def offer(value: Scalar) -> Resource:
        stated, _ = read_node({field: (attribute, value)}, {})
        return Resource(cpu_time=0, **stated)

    defaults: dict[str, Any] = {"conditions": (field,), "split": split, "offer": offer}
    return NodeNeed(attribute=attribute, asks=asks, **defaults | more)


#: What batch systems are asked where a site maps it. Cores, memory, time and number of GPUs are the slot's.
NEEDS: Final = (
    _need("MaxScratch", "scratch_mb", "MB of local disk", is_amount=True),
    _need("Architecture", "architecture", "the architecture of the processors"),
    _need(
        "CPULevel",
        "cpu_level",
        "that level or a higher one",
        conditions=("cpu_features",),
        offer=_offer_level,
    ),
    _need("CPUFlags", "cpu_features", "each feature of the processors", split=_split_features),
    _need("GPUVendor", "gpu_vendor", "the vendor of the GPUs"),
    _need("GPUArchitecture", "gpu_architecture", "that architecture or a later one"),
    _need("GPUMemory", "gpu_memory_mb", "MB of each GPU", is_amount=True),
    _need("GPURuntime", "gpu_runtime", "that version of the runtime or a later one"),
    _need(
        "Tag",
        "tags",
        "each tag that the job cannot do without",
        conditions=("tag", "tag_expression"),
        split=_split_tags,
        offer=_offer_tag,
    ),
)


def has_needs(asked: RequirementClass) -> bool:
    """Whether a class needs anything for which a site may have words."""
    return any(True for need in NEEDS for _ in need.split(asked))


def find_flags(asked: RequirementClass, mapping: SiteMapping) -> Flags:
    """The flags of the pilots for a class, in the language of a site; empty: any node."""
    terms = NodeTerms(mapping=mapping)
    clauses = (
        (term,)
        for need in NEEDS
        if (meaning := mapping.find(need.attribute))
        for part in need.split(asked)
        for term in _find_terms(need, part, meaning, terms)
    )
    return render_clauses(clauses, mapping.vocabulary)


def _find_terms(need: NodeNeed, part: RequirementClass, meaning: Meaning, terms: NodeTerms) -> Iterator[Term]:
    if need.is_amount:
        yield from terms.bound(ConditionForm.MIN, need.read_amount(part), meaning.minimum, meaning)
    tables = (
        (ConditionForm.EQUAL, meaning.equal or "", meaning.values or ()),
        (ConditionForm.FEATURE, "", meaning.features),
        (ConditionForm.KIND, "", meaning.kinds),
    )
    for form, word, values in tables:
        if texts := need.list_fitting(part, values):
            yield Term(form=form, word=word, texts=texts)


#: Bytes of cached flags.
MOST_BYTES: Final = 32 << 20
#: By the text of a mapping and the digest of a class.
_known: Cache[tuple[str, str], Flags] = Cache(
    100_000, measure=lambda _, flags: 300 + 100 * len(flags) + sum(map(len, flags)), most=MOST_BYTES
)


class ClassFlags:
    """Flags of requirement classes at the queues of one configuration."""

    def __init__(self, config: Configuration) -> None:
        self._config = config
        self._mappings: dict[tuple[QueueAddress, str], tuple[SiteMapping, str] | None] = {}
        self._texts: dict[int, str] = {}  #: by identity: queues of a site share its mapping
        self._needs: dict[str, bool] = {}  #: by digest of a class

    def find(self, address: QueueAddress, asked: RequirementClass) -> Flags:
        """The flags of the pilots for a class at a queue; empty: any node."""
        if asked.digest not in self._needs:
            self._needs[asked.digest] = has_needs(asked)
        if not self._needs[asked.digest]:
            return ()
        key = address, asked.vo
        if key not in self._mappings:
            self._mappings[key] = self._read_mapping(*key)
        known = self._mappings[key]
        if known is None:
            return ()
        mapping, text = known
        return _known.get((text, asked.digest), lambda: find_flags(asked, mapping))

    def _read_mapping(self, address: QueueAddress, vo: str) -> tuple[SiteMapping, str] | None:
        mapping = self._config.forwarding(address, vo)
        if mapping is None or not any(mapping.find(each.attribute) for each in NEEDS):
            return None
        return mapping, self._texts.setdefault(id(mapping), repr(mapping))
