"""For generated sources of every format: no import lets a VO in that the source keeps out.

What a source keeps out is read here once more, independently: lists of VOs that can be read, nearest first.
"""

import re
from typing import Any

from hypothesis import example, given
from hypothesis import strategies as st

from cs_config import validate
from cs_config.errors import ConfigError
from cs_config.formats import dirac_text
from cs_config.tree.configuration import Configuration
from cs_config.versions.store import NOTHING
from pilotage.plugins.formats import ce_ads, ce_ads_import, dirac_import, glidein_factory

VOS = ("alice", "cms", "lhcb")
Options = list[tuple[str, str]]

LISTS = st.lists(st.sampled_from([*VOS, "LHCb", "CMS"]), min_size=1, max_size=3).map(", ".join)
ODD = st.sampled_from(["lhcb cms", "lhcb # only", "{lhcb}", "(lhcb)", "lhcb;cms", "'lhcb'", "1e3", ","])
FLAGS = st.sampled_from(["True", "true", "False", "false", "no", "yes", "0", "1", "perhaps", "off"])
OPTION = st.one_of(
    st.tuples(st.sampled_from(["VO", "VO", "VO", "vo", "Vo"]), st.one_of(LISTS, LISTS, ODD)),
    st.tuples(st.sampled_from(["Enabled", "enabled", "Enable"]), FLAGS),
    st.tuples(st.sampled_from(["BannedVO", "AllowedVOs", "VOs", "OwnerGroup"]), LISTS),
    st.tuples(st.just("Status"), st.sampled_from(["Active", "Closed", "Testing"])),
    st.tuples(st.sampled_from(["MaxRAM", "OS", "Own", "MaxRAMM"]), st.sampled_from(["5", "el9", "a, b"])),
)
OPTIONS = st.lists(OPTION, max_size=3)


def names(text: str) -> set[str] | None:
    """The VOs of a list; None: it cannot be read, which lets nobody in."""
    items = [each.strip().lower() for each in text.split(",") if each.strip()]
    return set(items) if all(re.fullmatch(r"[a-z0-9.]+", each) for each in items) else None


def is_closed(options: Options) -> bool:
    """Whether a node says that nobody, or not everybody, may come, other than by a list `VO`."""
    last = {(name, name.lower()): value for name, value in options}  # of a repeated option the last counts
    folded = [name for _, name in last]
    if len(set(folded)) < len(folded):
        return any(name in ("vo", "enabled") for name in folded if folded.count(name) > 1)
    said = {name: value for (_, name), value in last.items()}
    if said.get("enabled", "true").lower() not in ("true", "yes", "1", "y"):
        return True
    if said.keys() & {"enable", "bannedvo", "allowedvos", "vos", "ownergroup"}:
        return True
    return said.get("status", "Active") != "Active" or ("vo" in said and names(said["vo"]) is None)


def own_list(options: Options) -> set[str] | None:
    found = [value for name, value in options if name.lower() == "vo"]
    return names(found[-1]) or set() if found else None


def allowed(levels: list[Options]) -> set[str]:
    """The VOs that a source lets in below levels, from the site down."""
    if any(map(is_closed, levels)):
        return set()
    lists = [found for each in levels if (found := own_list(each)) is not None]
    return set(VOS) & lists[-1] if lists else set(VOS)


def admitted(config: Configuration) -> dict[str, set[str]]:
    again = validate.parse(config.source, "again.yaml")  # what is applied, stored and read
    return {str(each): {vo for vo in VOS if again.usable(each, vo)} for each in again.addresses}


def lines(options: Options) -> str:
    return "".join(f"{name} = {value}\n" for name, value in options)


def in_cfg(site: Options, of_ces: Options, defaults: Options, ces: dict[str, tuple[Options, Options]]) -> str:
    below = "".join(
        f"{name} {{\n{lines(ce)}Queues {{\nq {{\n{lines(queue)}}}\n}}\n}}\n"
        for name, (ce, queue) in ces.items()
    )
    inside = f"{lines(site)}CEs {{\n{lines(of_ces)}{below}}}\n"
    computing = f"Computing {{\nCEDefaults {{\n{lines(defaults)}}}\n}}\n"
    return f"Resources {{\nSites {{\nLCG {{\nLCG.A.ch {{\nName = A\n{inside}}}\n}}\n}}\n{computing}}}\n"


CES = st.dictionaries(st.sampled_from(["ce1", "ce2"]), st.tuples(OPTIONS, OPTIONS), min_size=1)


def below_site(site: Options, of_ces: Options, defaults: Options, ce: Options, queue: Options) -> set[str]:
    """The VOs of a queue in today's layout: what a CE or its site says takes the place of its defaults."""
    own = {name.lower() for name, _ in ce}
    of_all = [each for each in of_ces if each[0].lower() not in own]
    default = [each for each in defaults if each[0].lower() not in own | {name.lower() for name, _ in of_ces}]
    found = allowed([site, ce, queue])
    if own_list(ce) is None and own_list(queue) is None:
        for options in (of_all, default):
            listed = own_list(options)
            found &= set(VOS) if listed is None else listed
    return found


@given(site=OPTIONS, of_ces=OPTIONS, defaults=OPTIONS, ces=CES)
@example(site=[], of_ces=[("VO", "cms")], defaults=[("VO", "alice")], ces={"ce1": ([], [])})
def test_an_import_of_todays_layout_lets_in_no_vo_that_the_source_keeps_out(
    site: Options, of_ces: Options, defaults: Options, ces: dict[str, tuple[Options, Options]]
):
    try:
        after = dirac_import.propose_dirac(
            NOTHING, {"x.cfg": in_cfg(site, of_ces, defaults, ces)}
        ).proposal.after
    except ConfigError:
        return  # nothing is imported
    for name, (ce, queue) in ces.items():
        lets_in = admitted(after).get(f"LCG.A.ch/{name}/q", set())
        assert lets_in <= below_site(site, of_ces, defaults, ce, queue)
    exported = dirac_text.export_dirac(after.tree, with_disabled=True).text
    back = dirac_import.propose_dirac(NOTHING, {"back.cfg": exported}).proposal.after
    assert all(vos <= admitted(after).get(queue, set()) for queue, vos in admitted(back).items())


@given(site=OPTIONS, ce=OPTIONS, queue=OPTIONS, community=st.sampled_from(["VO", "Communities"]))
@example(
    site=[],
    ce=[("VO", "alice"), ("vo", "alice")],
    queue=[("VO", "lhcb cms"), ("VO", "alice")],
    community="VO",
)
@example(
    site=[],
    ce=[("VO", "lhcb cms"), ("vo", "lhcb # only"), ("Enabled", "True")],
    queue=[("VO", "alice")],
    community="VO",
)
def test_an_import_of_rfc_5_lets_in_no_vo_that_the_source_keeps_out(
    site: Options, ce: Options, queue: Options, community: str
):
    def written(options: Options) -> str:
        return lines([(community if name == "VO" else name, value) for name, value in options])

    inside = f"Computing {{\nce1 {{\n{written(ce)}Queues {{\nq {{\n{written(queue)}}}\n}}\n}}\n}}\n"
    text = f"Resources {{\nSites {{\nA {{\nDomains = EGI\n{written(site)}{inside}}}\n}}\n}}\n"
    try:
        after = dirac_import.propose_dirac(NOTHING, {"x.cfg": text}).proposal.after
    except ConfigError:
        return
    # Two lists of one node are shared: at most what the last of them lets in.
    levels = [[each for each in level if each[0].lower() != "vo"] for level in (site, ce, queue)]
    assert admitted(after).get("EGI.A/ce1/q", set()) <= (
        allowed([site, ce, queue]) or _shared([site, ce, queue], levels)
    )


def _shared(levels: list[Options], without: list[Options]) -> set[str]:
    """What is let in where a node has its list under two names of it, of which each has to let in."""
    levels = [list(dict(each).items()) for each in levels]  # of a repeated option the last counts
    if any(map(is_closed, without)) or any(
        names(v) is None for each in levels for n, v in each if n.lower() == "vo"
    ):
        return set()
    own = next(
        lists
        for each in reversed(levels)
        if (lists := [names(v) or set() for n, v in each if n.lower() == "vo"]) or each is levels[0]
    )
    return set(VOS).intersection(*own)


RULE = st.one_of(
    st.sampled_from(VOS).map(lambda vo: f"VO:{vo}"),
    st.sampled_from(["vo:CMS", "VOMS:/cms/Role=production", "/DC=ch/CN=Ada", "DENY:VO:cms", "VO:a b", ""]),
)
ATTRIBUTES: Any = st.fixed_dictionaries(
    {},
    optional={
        "GlueCEAccessControlBaseRule": st.one_of(
            st.lists(RULE, max_size=3), st.sampled_from(["undefined", "5", "other.A", "error"])
        ),
        "VO": st.one_of(
            st.lists(st.sampled_from(VOS), max_size=2), st.sampled_from(["undefined", "5", "x.y"])
        ),
        "Enabled": st.sampled_from(["true", "false", '"false"', "undefined", "other.A"]),
        "AllowedVOs": st.just(["cms"]),
        "Other": st.just("5"),
    },
)


def of_ad(attributes: dict[str, Any]) -> set[str]:
    """The VOs that an ad lets in: those of its list, which decides, else those of its rules of whole VOs."""
    if attributes.get("Enabled", "true") != "true" or "AllowedVOs" in attributes:
        return set()
    if "VO" in attributes:
        listed = attributes["VO"]
    else:
        rules = attributes.get("GlueCEAccessControlBaseRule", [f"VO:{vo}" for vo in VOS])
        if isinstance(rules, str) or any(rule.startswith("DENY") for rule in rules):
            return set()
        listed = [rule[3:].lower() for rule in rules if rule[:3].lower() == "vo:"]
    return set() if isinstance(listed, str) else set(listed)


def in_ad(value: object) -> str:
    return "{ " + ", ".join(f'"{each}"' for each in value) + " }" if isinstance(value, list) else str(value)


@given(
    ATTRIBUTES, st.sampled_from(["Resources: {}\n", "Resources: {Computing: {DynamicAttributes: [Glue*]}}\n"])
)
def test_an_import_of_ads_lets_in_no_vo_that_the_source_keeps_out(attributes: dict[str, Any], tree: str):
    inside = " ".join(f"{name} = {in_ad(value)};" for name, value in attributes.items())
    text = f'[ id = "ce1/q"; info = [ {inside} ] ]'
    after = validate.parse(ce_ads_import.propose_ads(validate.parse(tree), {"x": text}, site="A").text)
    assert admitted(after).get("A/ce1/q", set()) <= of_ad(attributes)
    if after.addresses:
        exported = ce_ads.export_ads(after).text
        back = validate.parse(ce_ads_import.propose_ads(NOTHING, {"back": exported}).text)
        assert admitted(back).get("A/ce1/q", set()) <= of_ad(attributes)


ENTRY = st.fixed_dictionaries(
    {"enabled": st.sampled_from(["True", "true", "False", "no", "1", ""])},
    optional={
        "GLIDEIN_Supported_VOs": st.one_of(LISTS, st.sampled_from(["", "CMS LHCb", "(CMS)", "a=b"])),
        "glidein_supported_vos": LISTS,
        "GLIDEIN_In_Downtime": st.sampled_from(["True", "False", "maybe"]),
        "GLIDEIN_Entry_Start": st.just("a > 1"),
        "GLIDEIN_CPUS": st.sampled_from(["8", "auto"]),
    },
)


def of_entry(entry: dict[str, str]) -> set[str]:
    """The VOs that an entry of a factory lets in."""
    said = [value for name, value in entry.items() if name.lower() == "glidein_supported_vos"]
    listed = [set(re.split(r"[\s,]+", each.lower())) & set(VOS) for each in said]
    is_open = entry["enabled"].lower() == "true" and entry.get("GLIDEIN_In_Downtime", "False") == "False"
    return (
        set(VOS).intersection(*listed) if listed and is_open and "GLIDEIN_Entry_Start" not in entry else set()
    )


@given(entry=ENTRY, in_yaml=st.booleans())
def test_an_import_of_a_factory_lets_in_no_vo_that_the_source_keeps_out(entry: dict[str, str], in_yaml: bool):
    said = {name: value for name, value in entry.items() if name != "enabled"}
    if in_yaml:
        attributes = ", ".join(f"{name}: {{value: '{value}'}}" for name, value in said.items())
        text = f"A: {{ce1: {{q: {{enabled: '{entry['enabled']}', attrs: {{{attributes}}}}}}}}}\n"
    else:
        attributes = "".join(f'<attr name="{n}" value="{v.replace(">", "&gt;")}"/>' for n, v in said.items())
        attributes += '<attr name="GLIDEIN_Site" value="A"/>'
        inside = f'<entry name="q" gatekeeper="ce1" enabled="{entry["enabled"]}"><attrs>{attributes}</attrs>'
        text = f"<glidein><entries>{inside}</entry></entries></glidein>"
    try:
        after = glidein_factory.propose_factory(NOTHING, {"factory": text}).proposal.after
    except ConfigError:
        return
    assert admitted(after).get("OSG.A/ce1/q", set()) <= of_entry(entry)


@given(site=OPTIONS, defaults=OPTIONS, ces=CES)
def test_an_import_over_a_tree_lets_in_only_whom_the_tree_or_the_source_lets_in(
    site: Options, defaults: Options, ces: dict[str, tuple[Options, Options]]
):
    inside = "{VO: [lhcb], CEs: {ce1: {Enabled: false, Queues: {q: }}, ce2: {vo: [cms], Queues: {q: }}}}"
    under = validate.parse(f"Resources: {{Sites: {{LCG.A.ch: {inside}}}}}\n")
    try:
        after = dirac_import.propose_dirac(under, {"x.cfg": in_cfg(site, [], defaults, ces)}).proposal.after
    except ConfigError:
        return
    for name, (ce, queue) in ces.items():
        at = f"LCG.A.ch/{name}/q"
        assert admitted(after)[at] <= admitted(under)[at] | below_site(site, [], defaults, ce, queue)
