"""Import of computing shares in GLUE 2, in the form in which a BDII publishes them."""

import pytest

from cs_config import validate
from cs_config.errors import ConfigError
from cs_config.formats import ldif
from cs_config.tree.address import QueueAddress
from cs_config.versions.store import NOTHING
from pilotage.plugins.formats import glue2

#: As `ldapsearch -x -LLL -H ldap://… -b o=glue` prints it: two VOs share the queue `long`.
BDII = """\
version: 1

# the service
dn: GLUE2EndpointID=ce01.example.org_org.opensciencegrid.htcondorce,GLUE2ServiceID=ce01.example.org_Compu
 tingElement,GLUE2GroupID=resource,GLUE2DomainID=EXAMPLE-T2,GLUE2GroupID=grid,o=glue
objectClass: GLUE2Entity
objectClass: GLUE2Endpoint
objectClass: GLUE2ComputingEndpoint
GLUE2EndpointID: ce01.example.org_org.opensciencegrid.htcondorce
GLUE2EndpointURL: condor://ce01.example.org:9619/
GLUE2EndpointInterfaceName: org.opensciencegrid.htcondorce
GLUE2EndpointHealthState: ok

dn: GLUE2ResourceID=el9,GLUE2ServiceID=ce01.example.org_ComputingElement,GLUE2GroupID=resource,
 GLUE2DomainID=EXAMPLE-T2,GLUE2GroupID=grid,o=glue
objectClass: GLUE2Resource
objectClass: GLUE2ExecutionEnvironment
GLUE2ResourceID: el9
GLUE2ExecutionEnvironmentPlatform: amd64
GLUE2ExecutionEnvironmentOSName: AlmaLinux
GLUE2ExecutionEnvironmentOSVersion: 9.4
GLUE2ExecutionEnvironmentCPUModel: undefined

dn: GLUE2ResourceID=el8,GLUE2ServiceID=ce01.example.org_ComputingElement,GLUE2GroupID=resource,
 GLUE2DomainID=EXAMPLE-T2,GLUE2GroupID=grid,o=glue
objectClass: GLUE2ExecutionEnvironment
GLUE2ResourceID: el8
GLUE2ExecutionEnvironmentPlatform: amd64
GLUE2ExecutionEnvironmentOSName: AlmaLinux
GLUE2ExecutionEnvironmentOSVersion: 8.10

dn: GLUE2ShareID=long_atlas_ce01.example.org,GLUE2ServiceID=ce01.example.org_ComputingElement,
 GLUE2GroupID=resource,GLUE2DomainID=EXAMPLE-T2,GLUE2GroupID=grid,o=glue
objectClass: GLUE2Share
objectClass: GLUE2ComputingShare
GLUE2ShareID: long_atlas_ce01.example.org
GLUE2ComputingShareMappingQueue: long
GLUE2ComputingShareMaxCPUTime: 172800
GLUE2ComputingShareMaxWallTime: 259200
GLUE2ComputingShareMaxMainMemory: 444444
GLUE2ComputingShareGuaranteedMainMemory: 4000
GLUE2ComputingShareMaxSlotsPerJob: 999999999
GLUE2ComputingShareServingState: production
GLUE2ComputingShareRunningJobs: 312
GLUE2ComputingShareWaitingJobs: 40
GLUE2ComputingShareTotalJobs: 352
GLUE2ShareEndpointForeignKey: ce01.example.org_org.opensciencegrid.htcondorce
GLUE2ComputingShareExecutionEnvironmentForeignKey: el9
GLUE2ComputingShareExecutionEnvironmentForeignKey: el8

dn: GLUE2PolicyID=long_atlas_policy,GLUE2ShareID=long_atlas_ce01.example.org,o=glue
objectClass: GLUE2Policy
objectClass: GLUE2MappingPolicy
GLUE2PolicyRule: VO:atlas
GLUE2PolicyRule: VOMS:/atlas/Role=production
GLUE2MappingPolicyShareForeignKey: long_atlas_ce01.example.org

dn: GLUE2ShareID=long_lhcb_ce01.example.org,GLUE2ServiceID=ce01.example.org_ComputingElement,
 GLUE2GroupID=resource,GLUE2DomainID=EXAMPLE-T2,GLUE2GroupID=grid,o=glue
objectClass: GLUE2ComputingShare
GLUE2ShareID:: bG9uZ19saGNiX2NlMDEuZXhhbXBsZS5vcmc=
GLUE2ComputingShareMappingQueue: long
GLUE2ComputingShareMaxCPUTime: 86400
GLUE2ComputingShareMaxWallTime: 259200
GLUE2ComputingShareGuaranteedMainMemory: 4000
GLUE2ComputingShareRunningJobs: 8
GLUE2ComputingShareWaitingJobs: 2
GLUE2ComputingShareTotalJobs: 444444
GLUE2ShareEndpointForeignKey: ce01.example.org_org.opensciencegrid.htcondorce

dn: GLUE2PolicyID=long_lhcb_policy,GLUE2ShareID=long_lhcb_ce01.example.org,o=glue
objectClass: GLUE2MappingPolicy
GLUE2PolicyRule: lhcb
GLUE2MappingPolicyShareForeignKey: long_lhcb_ce01.example.org

"""
LONG = QueueAddress(site="LCG.EXAMPLE-T2", ce="ce01.example.org", queue="long")


def test_shares_of_one_mapping_queue_are_a_queue_with_values_of_its_vos() -> None:
    found = glue2.propose_glue2(NOTHING, {"bdii.ldif": BDII})
    config = found.proposal.after
    assert list(config.addresses) == [LONG]
    atlas, lhcb = config.values(LONG, "atlas"), config.values(LONG, "lhcb")
    assert (atlas["CPUTime"], lhcb["CPUTime"]) == (172800, 86400)
    for each in (atlas, lhcb):
        assert (each["maxWallClockTime"], each["MaxRAM"]) == (259200, 4000)
        assert (each["CEType"], each["BatchQueue"], each["Architecture"]) == ("HTCondorCE", "long", "x86_64")
        assert not each.keys() & {"NumberOfProcessors", "CPUModel"}
    assert dict(config.node_attributes(LONG, "atlas").declared) == {"OSVersion": ("8.10", "9.4")}
    assert [vo for vo in ("atlas", "lhcb", "cms") if config.usable(LONG, vo)] == ["atlas", "lhcb"]
    [note] = [each for each in found.notes if not each.message.startswith("not carried over")]
    assert "VOMS:/atlas/Role=production" in note.message


@pytest.mark.parametrize(
    ("published", "read"),
    [
        # Minutes: 12, 48, 72 hours, 7, 14 and 21 days, and what stands beside them.
        ((720, 720), (43_200, 43_200)),
        ((2880, 4320), (172_800, 259_200)),
        ((10_080, 30_240), (604_800, 1_814_400)),
        ((20_160, 7200), (1_209_600, 432_000)),
        ((1440, 900), (86_400, 54_000)),
        # Seconds.
        ((172_800, 259_200), (172_800, 259_200)),
        ((3600, 7200), (3600, 7200)),
        ((1800, 1200), (1800, 1200)),
        ((36_000, 43_200), (36_000, 43_200)),
        # Of two units each is read in its own.
        ((172_800, 2880), (172_800, 172_800)),
        # Nobody stated them.
        ((2_147_483_647, 0), (None, None)),
        ((999_999_999, 444_444), (None, None)),
    ],
)
def test_times_in_minutes_are_told_from_seconds(
    published: tuple[int, int], read: tuple[int | None, int | None]
) -> None:
    text = BDII.replace("CPUTime: 172800", f"CPUTime: {published[0]}").replace(
        "CPUTime: 86400", f"CPUTime: {published[0]}"
    )
    text = text.replace("WallTime: 259200", f"WallTime: {published[1]}")
    found = glue2.propose_glue2(NOTHING, {"bdii.ldif": text})
    values = found.proposal.after.values(LONG, "atlas")
    assert (values.get("CPUTime"), values.get("maxWallClockTime")) == read
    converted = {each.message for each in found.notes if "is read as minutes" in each.message}
    assert len(converted) == sum(b is not None and a != b for a, b in zip(published, read, strict=True))


@pytest.mark.parametrize(
    "placeholder", ["0", "444444", "999999", "9" * 9, "2147483647", "4294967295", str(2**63 - 1)]
)
def test_a_number_that_nobody_stated_is_named(placeholder: str) -> None:
    text = BDII.replace("MaxSlotsPerJob: 999999999", f"MaxSlotsPerJob: {placeholder}")
    found = glue2.propose_glue2(NOTHING, {"bdii.ldif": text})
    assert "NumberOfProcessors" not in found.proposal.after.values(LONG, "atlas")
    notes = {each.path: each.message for each in found.notes}
    assert notes[f"GLUE2ComputingShareMaxSlotsPerJob = {placeholder}"] == "not carried over (1 place)"


@pytest.mark.parametrize("key", ["GLUE2ShareResourceForeignKey", "GLUE2Other"])
def test_an_environment_that_no_share_names_is_noted_attribute_by_attribute(key: str) -> None:
    """GFD.218 has a key of computing shares, and one of shares."""
    text = BDII.replace("GLUE2ComputingShareExecutionEnvironmentForeignKey", key)
    found = glue2.propose_glue2(NOTHING, {"bdii.ldif": text})
    is_named = key == "GLUE2ShareResourceForeignKey"
    assert found.proposal.after.values(LONG, "atlas").get("Architecture") == ("x86_64" if is_named else None)
    notes = {each.path for each in found.notes}
    assert ("GLUE2ExecutionEnvironmentPlatform" in notes) is not is_named
    assert ("GLUE2ResourceID" in notes) is not is_named


def test_notes_have_the_line_of_their_share() -> None:
    text = BDII.replace("InterfaceName: org.opensciencegrid.htcondorce", "InterfaceName: org.ogf.bes")
    text = text.replace("MaxWallTime: 259200", "MaxWallTime: 2880").replace(
        "Memory: 4000", f"Memory: {10**14}"
    )
    found = glue2.propose_glue2(NOTHING, {"bdii.ldif": text})
    notes = [each for each in found.notes if " place" not in each.message]
    for part in ("no CEType", "is read as minutes", "admit no one", "not carried over"):
        assert any(part in each.message for each in notes)
    lines = text.splitlines()
    for each in notes:
        assert each.line is not None
        assert lines[each.line - 1].startswith("dn: GLUE2ShareID=long_")


def test_a_second_import_changes_nothing_also_with_other_numbers_of_jobs() -> None:
    config = glue2.propose_glue2(NOTHING, {"bdii.ldif": BDII}).proposal.after
    again = glue2.propose_glue2(config, {"bdii.ldif": BDII.replace("RunningJobs: 312", "RunningJobs: 0")})
    assert again.proposal.after.source == config.source


def test_a_later_import_has_the_effect_of_one_alone() -> None:
    equal = BDII.replace("MaxCPUTime: 86400", "MaxCPUTime: 172800")
    one_system = BDII.replace("ForeignKey: el8", "ForeignKey: el9")
    for first, second in [(equal, BDII), (BDII, one_system), (one_system, BDII)]:
        config = glue2.propose_glue2(NOTHING, {"bdii.ldif": first}).proposal.after
        again = glue2.propose_glue2(config, {"bdii.ldif": second}).proposal.after
        alone = glue2.propose_glue2(NOTHING, {"bdii.ldif": second}).proposal.after
        for vo in ("atlas", "lhcb"):
            assert again.values(LONG, vo) == alone.values(LONG, vo)
            assert again.node_attributes(LONG, vo) == alone.node_attributes(LONG, vo)


def test_limits_of_an_administrator_stay_and_are_named_where_they_hide_what_is_published() -> None:
    mine = validate.parse(
        "Resources: {Sites: {LCG.EXAMPLE-T2: {CEs: {ce01.example.org: {Queues: {long: "
        "{NumberOfProcessors: 8, VOs: {ATLAS: {MaxRAM: 1000}, lhcb: {MaxRAM: 4000}}}}}}}}}",
        "mine",
    )
    one_limited = BDII.replace("MaxSlotsPerJob: 999999999", "MaxSlotsPerJob: 4")
    found = glue2.propose_glue2(mine, {"bdii.ldif": one_limited})
    atlas, lhcb = (found.proposal.after.values(LONG, vo) for vo in ("atlas", "lhcb"))
    assert (atlas["MaxRAM"], lhcb["MaxRAM"]) == (1000, 4000)
    assert (atlas["NumberOfProcessors"], lhcb["NumberOfProcessors"]) == (4, 8)
    [note] = [each for each in found.notes if "published for all VOs" in each.message]
    assert note.path.endswith("long/VOs/ATLAS/MaxRAM")
    assert "stays 1000, although 4000" in note.message


def test_a_long_folded_line_is_read_once() -> None:
    text = "dn: a\n" + " b\n" * 100_000
    assert ldif.read_ldif(text, "bdii.ldif") == [{"dn": ["a" + "b" * 100_000]}]


def test_ids_are_those_of_an_admin_domain() -> None:
    other = BDII.replace("EXAMPLE-T2", "OTHER-T2").replace("ce01.example.org", "ce02.other.org")
    other = other.replace("AlmaLinux", "Debian").replace("9.4", "12").replace("VO:atlas", "VO:cms")
    other = other.replace("bG9uZ19saGNiX2NlMDEuZXhhbXBsZS5vcmc=", "bG9uZ19saGNiX2NlMDIub3RoZXIub3Jn")
    after = glue2.propose_glue2(NOTHING, {"one.ldif": BDII, "two.ldif": other}).proposal.after
    there = QueueAddress(site="LCG.OTHER-T2", ce="ce02.other.org", queue="long")
    assert {str(each) for each in after.addresses} == {str(LONG), str(there)}
    assert after.values(LONG, "atlas")["OSName"] == "AlmaLinux"
    assert after.values(there, "cms")["OSName"] == "Debian"
    assert not after.usable(LONG, "cms")


def test_a_ce_stays_at_its_site() -> None:
    mine = validate.parse(
        "Resources: {Sites: {LCG.Mine.org: {CEs: {ce01.example.org: {Queues: {long: {MaxRAM: 1}}}}}}}", "mine"
    )
    after = glue2.propose_glue2(mine, {"bdii.ldif": BDII}, site="LCG.Other.org").proposal.after
    assert [str(each) for each in after.addresses] == ["LCG.Mine.org/ce01.example.org/long"]


_SERVICE = """\
dn: GLUE2ServiceID=ce01.example.org_ComputingElement,GLUE2GroupID=resource,o=glue
objectClass: GLUE2Service
objectClass: GLUE2ComputingService
GLUE2ServiceID: ce01.example.org_ComputingElement
GLUE2ServiceAdminDomainForeignKey: {domain}

"""


@pytest.mark.parametrize(
    "key", ["GLUE2ShareServiceForeignKey", "GLUE2ComputingShareComputingServiceForeignKey"]
)
@pytest.mark.parametrize(
    ("domain", "places"),
    [
        *(("EXAMPLE-T2", {str(LONG)}), ("urn:ogf:AdminDomain:EXAMPLE-T2", {str(LONG)})),
        *(("urn:ad:UNDEFINEDVALUE", set()), ("", set())),
    ],
)
def test_a_ce_that_publishes_itself_is_at_the_domain_of_its_service(
    key: str, domain: str, places: set[str]
) -> None:
    """As the resource BDII of a CE prints it, whose entries are below no admin domain."""
    service = f"GLUE2ComputingShareMappingQueue: long\n{key}: ce01.example.org_ComputingElement"
    text = BDII.replace("GLUE2DomainID=EXAMPLE-T2,GLUE2GroupID=grid,", "")
    text = _SERVICE.format(domain=domain) + text.replace("GLUE2ComputingShareMappingQueue: long", service)
    found = glue2.propose_glue2(NOTHING, {"ce.ldif": text})
    assert {str(each) for each in found.proposal.after.addresses} == places
    assert any("an admin domain" in each.message for each in found.notes) == (not places)


def test_the_numbers_of_jobs_are_an_advertisement() -> None:
    assert ldif.read_counts(BDII, "bdii.ldif") == {
        "CurrentRunningJobs": 320,
        "CurrentPendingJobs": 42,
        "CurrentJobs": 362,
        "ServingState": ["production"],
    }


def test_without_a_policy_no_vo_is_admitted() -> None:
    text = BDII[: BDII.index("dn: GLUE2PolicyID=long_atlas")]
    found = glue2.propose_glue2(NOTHING, {"bdii.ldif": text})
    assert not found.proposal.after.usable(LONG, "atlas")
    assert "no VO is admitted" in found.notes[0].message


@pytest.mark.parametrize("rule", ["DENY:VO:lhcb", "DENY:/lhcb/x", "deny:VOMS:/atlas/guests", "DENY"])
def test_a_denial_closes_its_queue_to_all_vos(rule: str) -> None:
    text = BDII.replace("PolicyRule: lhcb\n", f"PolicyRule: VO:lhcb\nGLUE2PolicyRule: {rule}\n")
    found = glue2.propose_glue2(NOTHING, {"bdii.ldif": text})
    assert [vo for vo in ("atlas", "lhcb") if found.proposal.after.usable(LONG, vo)] == []
    [told] = [each for each in found.notes if f"{rule}; a denial closes it to all VOs" in each.message]
    assert told.line == text.splitlines().index("GLUE2ShareID:: bG9uZ19saGNiX2NlMDEuZXhhbXBsZS5vcmc=") - 2
    assert not any("no policy names a VO" in each.message for each in found.notes)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("dn: o=glue\nnonsense\n", "line 2: 'nonsense' is not LDIF"),
        ("dn: o=glue\nGLUE2ShareID:: %%%\n", "line 2: GLUE2ShareID is not a text in base64"),
        ("dn: o=glue\nobjectClass: GLUE2Service\n", "it has no GLUE2ComputingShare"),
    ],
)
def test_a_wrong_text_is_refused_with_its_line(text: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        glue2.propose_glue2(NOTHING, {"bdii.ldif": text})


def test_an_interface_of_no_known_kind_is_named() -> None:
    text = BDII.replace("InterfaceName: org.opensciencegrid.htcondorce", "InterfaceName: org.ogf.bes")
    found = glue2.propose_glue2(NOTHING, {"bdii.ldif": text})
    assert "CEType" not in found.proposal.after.values(LONG, "atlas")
    [note] = [each for each in found.notes if each.message.startswith("no CEType")]
    assert (note.path, "org.ogf.bes" in note.message) == (str(LONG), True)
