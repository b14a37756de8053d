import html
from collections.abc import Mapping
from pathlib import Path
from xml.sax.saxutils import quoteattr

import pytest

from cs_config import validate
from cs_config.errors import ConfigError
from cs_config.formats.importers import ImportedConfiguration
from cs_config.versions.store import NOTHING
from pilotage.plugins.formats import glidein_factory

FACTORY = """
<glidein factory_name="gfactory">
  <entries>
    <entry name="CMSHTPC_T3_TW_TIDC" enabled="True" gatekeeper="ce1.example.tw ce1.example.tw:9619"
           gridtype="condor" rsl="(queue=long)(jobtype=single)">
      <config><max_jobs><per_entry glideins="5000" held="10" idle="500"/></max_jobs></config>
      <attrs>
        <attr name="GLIDEIN_CPUS" value="8"/>
        <attr name="GLIDEIN_MaxMemMBs" value="64000"/>
        <attr name="GLIDEIN_Max_Walltime" value="259200"/>
        <attr name="GLIDEIN_Site" value="ASGC"/>
        <attr name="GLIDEIN_Country" value="TW"/>
        <attr name="GLIDEIN_Supported_VOs" value="CMS, OSGVO"/>
        <attr name="GLIDEIN_CMSSite" value="T3_TW_TIDC"/>
        <attr name="GLIDEIN_ResourceName" value="TIDC"/>
      </attrs>
    </entry>
    <entry name="LIGO_TW" enabled="False" gatekeeper="https://arc.example.tw:443/arex" gridtype="arc">
      <attrs><attr name="GLIDEIN_CPUS" value="4"/></attrs>
    </entry>
    <entry name="Second" enabled="False" gatekeeper="https://ce1.example.tw:2811/arex" gridtype="arc">
      <attrs><attr name="GLIDEIN_Site" value="ASGC"/><attr name="GLIDEIN_Country" value="TW"/></attrs>
    </entry>
  </entries>
</glidein>
"""


def test_an_entry_becomes_a_queue_and_what_is_left_out_is_told():
    found = glidein_factory.propose_factory(NOTHING, {"factory.xml": FACTORY})
    config = found.proposal.after
    first, second = config.addresses
    assert str(first) == "OSG.ASGC.tw/ce1.example.tw/CMSHTPC_T3_TW_TIDC"
    assert config.tree["Resources"]["Sites"]["OSG.ASGC.tw"]["Country"] == "TW"
    assert dict(config.values(first, "cms")) == {
        "Name": "ASGC",
        "Country": "TW",
        "CEType": "HTCondorCE",
        "NumberOfProcessors": 8,
        "MaxRAM": 64000,
        "maxWallClockTime": 259200,
        "VO": ("cms", "osgvo"),
        "SiteName": "T3_TW_TIDC",
        "BatchQueue": "long",
        "MaxTotalJobs": 5000,
        "MaxWaitingJobs": 500,
    }
    assert config.values(second, "cms")["Endpoint"] == "ce1.example.tw:2811"
    assert config.usable(first, "osgvo")
    assert not config.usable(second, "osgvo")
    assert {note.path: note.message.partition(":")[0] for note in found.notes} == {
        "entry 'LIGO_TW'": "not carried over",
        "entry Second": "no VO in GLIDEIN_Supported_VOs",
        "attrs/GLIDEIN_ResourceName": "not carried over (1 place)",
        "glidein/factory_name": "not carried over (1 place)",
        "per_entry/held": "not carried over (1 place)",
        "rsl": "not carried over (1 place)",
    }
    again = glidein_factory.propose_factory(config, {"factory.xml": FACTORY})
    assert again.proposal.differences == ()


@pytest.mark.parametrize("text", ["", "<glidein>", "<glidein/>", "name: x"])
def test_what_is_no_factory_is_refused(text: str):
    with pytest.raises(ConfigError, match=r"f\.xml"):
        glidein_factory.propose_factory(NOTHING, {"f.xml": text})


IN_YAML = """
CedarCluster:
  ce28.example.edu:
    GLUEX_US_cedar:
      gridtype: condor
      attrs:
        GLIDEIN_CPUS: {value: 4}
        GLIDEIN_MaxMemMBs: {type: int, value: 2500}
        GLIDEIN_Retire_Time:
        GLIDEIN_Site: {value: Cedar}
        GLIDEIN_Country: {value: US}
        GLIDEIN_Supported_VOs: {value: "GLUEX,OSGVO"}
      limits: {entry: {glideins: 100}}
      submit_attrs: {+maxMemory: 2500, +queue: "&quot;osg&quot;"}
    Plain:
      enabled: False
      attrs: {}
Two Words:
  ce1.example.edu:
    DEFAULT_ENTRY:
    Other: {attrs: {}}
"""


def test_the_yaml_of_a_factory_says_the_same_as_its_xml():
    found = glidein_factory.propose_factory(NOTHING, {"OSG.yml": IN_YAML})
    config = found.proposal.after
    assert sorted(map(str, config.addresses)) == [
        "OSG.Cedar.us/ce28.example.edu/GLUEX_US_cedar",
        "OSG.CedarCluster/ce28.example.edu/Plain",
    ]
    values = {str(each): dict(config.values(each, "gluex")) for each in config.addresses}
    assert values["OSG.Cedar.us/ce28.example.edu/GLUEX_US_cedar"] == {
        "Name": "Cedar",
        "Country": "US",
        "CEType": "HTCondorCE",
        "NumberOfProcessors": 4,
        "MaxRAM": 2500,
        "VO": ("gluex", "osgvo"),
        "BatchQueue": "osg",
        "MaxTotalJobs": 100,
    }
    assert values["OSG.CedarCluster/ce28.example.edu/Plain"]["Enabled"] is False
    assert [note.path for note in found.notes] == ["entry Plain", "entry 'Other'", "attrs/*/type"]


ENTRY = """<glidein><entries>
<entry name="E" enabled="True" gatekeeper="ce.a.org ce.a.org:9619" gridtype="condor">
<config><submit><submit_attrs>{submit}</submit_attrs></submit></config>
<attrs>
<attr name="GLIDEIN_Site" value="A"/><attr name="GLIDEIN_Supported_VOs" value="CMS"/>
{attrs}
</attrs>
</entry></entries></glidein>"""


def _attributes(tag: str, stated: dict[str, str]) -> str:
    return "".join(f'<{tag} name="{name}" value="{value}"/>' for name, value in stated.items())


@pytest.mark.parametrize(
    ("attrs", "submit", "expected", "notes"),
    [
        ({}, {"Request_GPUs": "4", "+queue": "&quot;gpuq&quot;"}, {"GPUs": 4, "BatchQueue": "gpuq"}, []),
        ({"GLIDEIN_Resource_Slots": "GPUs,4,type=main"}, {}, {"GPUs": 4}, []),
        ({"GLIDEIN_Resource_Slots": "gpus,2"}, {}, {"GPUs": 2}, []),
        ({"GLIDEIN_Resource_Slots": "ioslot,1"}, {}, {}, ["GLIDEIN_Resource_Slots = ioslot,1"]),
        (
            {},
            {"+WantWholeNode": "True", "+maxWallTime": "2880"},
            {"WholeNode": True, "maxWallClockTime": 172800},
            [],
        ),
        (
            {"GLIDEIN_Resource_Slots": "GPUs,2"},
            {"Request_GPUs": "1"},
            {"GPUs": 1},
            ["GLIDEIN_Resource_Slots = GPUs,2"],
        ),
        ({"GLIDEIN_Resource_Slots": "GPUs,1"}, {"Request_GPUs": "1"}, {"GPUs": 1}, []),
        ({}, {"batch_queue": "gpu"}, {"BatchQueue": "gpu"}, []),
        ({}, {"+remote_queue": "gpu"}, {"BatchQueue": "gpu"}, []),
        ({}, {"+queue": "gpu", "batch_queue": "cpu"}, {"BatchQueue": "gpu"}, ["batch_queue = cpu"]),
        ({}, {"+WantWholeNode": "False"}, {}, []),
        ({}, {"+WantWholeNode": "undefined"}, {}, ["entry E"]),
        ({}, {"+maxMemory": "64000", "+xcount": "14"}, {"MaxRAM": 64000, "NumberOfProcessors": 14}, []),
        (
            {"GLIDEIN_CPUS": "auto", "GLIDEIN_ESTIMATED_CPUS": "64"},
            {},
            {"NumberOfProcessors": 64},
            ["GLIDEIN_CPUS = auto"],
        ),
        (
            {"GLIDEIN_MaxMemMBs": "999999999", "GLIDEIN_CPUS": "0", "GLIDEIN_Max_Walltime": "3600"},
            {"+maxMemory": "2147483647"},
            {"maxWallClockTime": 3600},
            ["entry E"] * 3,
        ),
        ({"GLIDEIN_CPUS": "8"}, {"+xcount": "4"}, {"NumberOfProcessors": 8}, ["+xcount = 4"]),
        ({"GLIDEIN_Max_Walltime": "3600"}, {"+maxWallTime": "60"}, {"maxWallClockTime": 3600}, []),
        (
            {"GLIDEIN_MaxMemMBs": ""},
            {"+ProjectName": "x"},
            {},
            ["submit_attrs/+ProjectName"],
        ),
    ],
)
def test_attributes_of_an_entry_and_of_its_submission(
    attrs: dict[str, str], submit: dict[str, str], expected: dict[str, object], notes: list[str]
):
    text = ENTRY.format(attrs=_attributes("attr", attrs), submit=_attributes("submit_attr", submit))
    found = glidein_factory.propose_factory(NOTHING, {"factory.xml": text})
    config = found.proposal.after
    [queue] = config.addresses
    always = {"Name": "A", "CEType": "HTCondorCE", "VO": ("cms",)}
    assert dict(config.values(queue, "cms")) == always | expected
    assert [note.path for note in found.notes] == notes


IN_SECTIONS = """
Lab:
  common_entry_fields:
    attrs: {GLIDEIN_Site: {value: Lab}, GLIDEIN_CPUS: {value: 4}}
    submit_attrs: {+WantWholeNode: True}
  ce1.example.edu:
    standard:
      One: {attrs: {GLIDEIN_Supported_VOs: {value: OSGVO}, GLIDEIN_CPUS: {value: 8}}}
    gpu:
      Two:
        enabled: False
        attrs: {GLIDEIN_Supported_VOs: {value: OSGVO}}
        submit_attrs: {Request_GPUs: 1}
    bare:
      Three:
    Flat: {attrs: {GLIDEIN_Supported_VOs: {value: CMS}}}
"""


def test_entries_stand_in_sections_and_have_the_fields_of_their_site():
    found = glidein_factory.propose_factory(NOTHING, {"OSG.yml": IN_SECTIONS})
    config = found.proposal.after
    values = {each.queue: dict(config.values(each, "osgvo")) for each in config.addresses}
    common = {"Name": "Lab", "CEType": "HTCondorCE", "WholeNode": True}
    assert values == {
        "One": {**common, "NumberOfProcessors": 8, "VO": ("osgvo",)},
        "Two": {**common, "NumberOfProcessors": 4, "GPUs": 1, "VO": ("osgvo",), "Enabled": False},
        "Three": {**common, "NumberOfProcessors": 4, "VO": ()},
        "Flat": {**common, "NumberOfProcessors": 4, "VO": ("cms",)},
    }
    assert {each.ce for each in config.addresses} == {"ce1.example.edu"}
    assert [note.path for note in found.notes] == ["entry Three"]


def test_an_entry_may_name_another_gatekeeper_than_that_of_its_section():
    other = "attrs: {GLIDEIN_Supported_VOs: {value: CMS}}, gatekeeper: ce2.example.edu ce2.example.edu:9620"
    text = IN_SECTIONS.replace("attrs: {GLIDEIN_Supported_VOs: {value: CMS}}", other)
    found = glidein_factory.propose_factory(NOTHING, {"OSG.yml": text})
    config = found.proposal.after
    [place] = [each for each in config.addresses if each.ce == "ce2.example.edu"]
    assert (place.queue, config.values(place, "cms")["Endpoint"]) == ("Flat", "ce2.example.edu:9620")
    assert [note.path for note in found.notes] == ["entry Three"]


OF_COLLECTOR = """
Lab:
  ce1.example.edu:
    standard:
      DEFAULT_ENTRY:
        gridtype: condor
        attrs: {GLIDEIN_CPUS: {value: 16}, GLIDEIN_Supported_VOs: {value: "OSGVO,LIGO"}}
  ce9.example.edu:
    standard:
      DEFAULT_ENTRY: {attrs: {GLIDEIN_CPUS: {value: 2}}}
"""
OF_ALL = """
DEFAULT_SITE:
  DEFAULT_GATEKEEPER:
    DEFAULT_ENTRY:
      attrs:
        GLIDEIN_CPUS: {value: 1}
        GLIDEIN_Max_Walltime: {value: 86400}
        GLIDEIN_CMSSite: {job_publish: True}
      limits: {entry: {glideins: 10000}}
"""
ALLOWED = """
Lab:
  ce1.example.edu:
    standard:
      One:
      Two: {attrs: {GLIDEIN_CPUS: {value: 8}, GLIDEIN_Supported_VOs: {append_value: "CMS,LIGO"}}}
    gpu:
      Three: {attrs: {GLIDEIN_Supported_VOs: {append_value: CMS}}}
"""


def test_entries_of_several_files_have_what_their_ces_publish_and_what_all_have():
    files = {"allowed.yml": ALLOWED, "OSG.yml": OF_COLLECTOR, "default.yml": OF_ALL}
    found = glidein_factory.propose_factory(NOTHING, files)
    config = found.proposal.after
    values = {each.queue: dict(config.values(each, "cms")) for each in config.addresses}
    of_all = {
        "Name": "Lab",
        "CEType": "HTCondorCE",
        "maxWallClockTime": 86400,
        "MaxTotalJobs": 10000,
    }
    assert values == {
        "One": {**of_all, "NumberOfProcessors": 16, "VO": ("osgvo", "ligo")},
        "Two": {**of_all, "NumberOfProcessors": 8, "VO": ("cms", "ligo", "osgvo")},
        "Three": {**of_all, "NumberOfProcessors": 1, "VO": ("cms",)},
    }
    paths = [note.path for note in found.notes]
    assert paths == ["Lab/ce9.example.edu/standard/DEFAULT_ENTRY", "attrs/*/job_publish"]


def test_a_value_among_the_entries_of_a_section_leaves_them_what_they_are():
    text = "Lab: {ce1.example.edu: {gpu: {Two: {attrs: {}}, odd: 1}}}"
    found = glidein_factory.propose_factory(NOTHING, {"entries.yml": text})
    assert [each.queue for each in found.proposal.after.addresses] == ["Two"]
    assert "Lab/ce1.example.edu/gpu/odd, a value" in [note.path for note in found.notes]


@pytest.mark.parametrize("above", ["", "    standard:\n"])
def test_one_file_states_what_its_entries_lack_and_no_queue_of_that_name(above: str):
    text = f"""
Lab:
  ce1.example.edu:
{above}      One: {{attrs: {{GLIDEIN_Country: {{value: US}}}}}}
      DEFAULT_ENTRY: {{attrs: {{GLIDEIN_CPUS: {{value: 4}}, GLIDEIN_Supported_VOs: {{value: CMS}}}}}}
  ce2.example.edu:
    DEFAULT_ENTRY: {{attrs: {{GLIDEIN_Supported_VOs: {{value: CMS}}}}}}
"""
    found = glidein_factory.propose_factory(NOTHING, {"one.yml": text})
    config = found.proposal.after
    [queue] = config.addresses
    assert queue.queue == "One"
    values = config.values(queue, "cms")
    assert (values["NumberOfProcessors"], values["VO"]) == (4, ("cms",))
    assert [note.path for note in found.notes] == ["Lab/ce2.example.edu/DEFAULT_ENTRY"]


def test_what_ces_publish_is_no_queue_alone():
    with pytest.raises(ConfigError, match="no entries but DEFAULT_ENTRY"):
        glidein_factory.propose_factory(NOTHING, {"OSG.yml": OF_COLLECTOR})


OF_ALL_BY_SECTION = """
DEFAULT_SITE:
  DEFAULT_GATEKEEPER:
    DEFAULT_ENTRY:
      attrs: {GLIDEIN_MaxMemMBs: {value: 2500}, GLIDEIN_Supported_VOs: {value: CMS}}
    standard:
      DEFAULT_ENTRY: {attrs: {GLIDEIN_Max_Walltime: {value: 259200}}}
    gpu:
      DEFAULT_ENTRY: {attrs: {GLIDEIN_CPUS: {value: 1}, GLIDEIN_MaxMemMBs: {value: 4000}}}
    unused:
      DEFAULT_ENTRY: {attrs: {GLIDEIN_CPUS: {value: 64}}}
"""
BY_SECTION = """
Lab:
  ce1.example.edu:
    standard: {One: {attrs: {GLIDEIN_CPUS: {value: 8}}}}
    gpu: {Two: {attrs: {}}}
    other: {Three: {attrs: {}}}
    Four: {attrs: {}}
"""


def test_what_all_entries_of_a_section_lack_is_that_of_the_section():
    files = {"entries.yml": BY_SECTION, "default.yml": OF_ALL_BY_SECTION}
    found = glidein_factory.propose_factory(NOTHING, files)
    config = found.proposal.after
    names = ("NumberOfProcessors", "maxWallClockTime", "MaxRAM")
    values = {each.queue: config.values(each, "cms") for each in config.addresses}
    assert {queue: tuple(of_queue.get(name) for name in names) for queue, of_queue in values.items()} == {
        "One": (8, 259200, 2500),
        "Two": (1, None, 4000),
        "Three": (None, None, 2500),
        "Four": (None, None, 2500),
    }
    assert [note.path for note in found.notes] == ["DEFAULT_SITE/unused/DEFAULT_ENTRY"]


@pytest.mark.parametrize(
    "gatekeeper",
    [
        "ce1.example.tw:8443/cream-pbs-cms_long",
        "https://ce1.example.tw:8443/ce-cream/services/CREAM2 pbs cms_long",
    ],
)
def test_a_gatekeeper_of_cream_names_its_queue(gatekeeper: str):
    text = FACTORY.replace("ce1.example.tw ce1.example.tw:9619", gatekeeper)
    found = glidein_factory.propose_factory(NOTHING, {"factory.xml": text.replace("(queue=long)", "")})
    config = found.proposal.after
    values = config.values(config.addresses[0], "cms")
    assert (values["BatchQueue"], values["Endpoint"]) == ("cms_long", "ce1.example.tw:8443")


def test_the_grid_of_the_examples_is_laid_over_what_is_in_force():
    text = (Path(__file__).parents[3] / "examples/osg/resources.yaml").read_text()
    mine = validate.parse("Resources: {Sites: {LCG.A.org: {CEs: {ce1: {Queues: {long: {}}}}}}}\n")
    found = glidein_factory.propose_factory(mine, {"resources.yaml": text})
    assert len(found.proposal.after.addresses) == 981
    assert found.notes == ()
    again = glidein_factory.propose_factory(found.proposal.after, {"resources.yaml": text})
    assert again.proposal.differences == ()


OF_GENERATOR = """
DEFAULT_SITE:
  DEFAULT_GETEKEEPER:
    DEFAULT_ENTRY:
      attrs:
        GLIDEIN_CPUS: {value: 1}
        GLIDEIN_MaxMemMBs: {value: 2500}
        GLIDEIN_REQUIRED_OS: {value: rhel6}
      submit_attrs: {+xcount: 1}
      limits: {entry: {glideins: 10000, held: 10, idle: 20}, frontend: {glideins: 5000, held: 10, idle: 20}}
"""


def generated(own: str, published: str = "{}") -> ImportedConfiguration:
    """The import of an entry, with what its CE publishes and what the factory's defaults are."""
    files = {
        "mine.yml": f"Lab: {{ce1.example.edu: {{standard: {{One: {own}}}}}}}",
        "OSG.yml": f"Lab: {{ce1.example.edu: {{standard: {{DEFAULT_ENTRY: {published}}}}}}}",
        "default.yml": OF_GENERATOR,
    }
    return glidein_factory.propose_factory(NOTHING, files)


def values_of_one(found: ImportedConfiguration) -> Mapping[str, object]:
    """The values of the only queue."""
    config = found.proposal.after
    [place] = config.addresses
    return config.values(place, "cms")


@pytest.mark.parametrize(
    ("limits", "total", "idle"),
    [
        ("{}", 10000, 2000),
        ("{entry: {glideins: 8}}", 8, 8),
        ("{entry: {glideins: 50}}", 50, 10),
        ("{entry: {glideins: 300, idle: 6}}", 300, 18),
        ("{entry: {glideins: 300, idle: 12.5}}", 300, 37),
        ("{entry: {glideins: 300, idle: 120}}", 300, 300),
        ("{entry: {idle: 6}}", 10000, 600),
        ("{frontend: {glideins: 200, idle: 10}}", 200, 20),
    ],
)
def test_idle_glideins_are_a_percentage_in_yaml(limits: str, total: int, idle: int):
    found = values_of_one(generated(f"{{limits: {limits}}}"))
    assert (found["MaxTotalJobs"], found["MaxWaitingJobs"]) == (total, idle)


def test_a_percentage_of_no_number_is_left_out_and_told():
    text = IN_YAML.replace("glideins: 100", "idle: 20")
    found = glidein_factory.propose_factory(NOTHING, {"OSG.yml": text})
    config = found.proposal.after
    assert "MaxWaitingJobs" not in config.values(config.addresses[0], "gluex")
    assert "limits/entry/idle" in [note.path for note in found.notes]


@pytest.mark.parametrize(
    ("own", "published", "expected"),
    [
        ("{}", "{}", None),
        ("{attrs: {GLIDEIN_REQUIRED_OS: {value: debian12}}}", "{}", ("debian12",)),
        ("{}", "{attrs: {GLIDEIN_REQUIRED_OS: {value: 'rhel8,rhel9'}}}", ("rhel8", "rhel9")),
    ],
)
def test_the_factory_overwrites_the_system_of_its_defaults(own: str, published: str, expected: object):
    found = generated(own, published)
    assert values_of_one(found).get("OS") == expected
    assert "DEFAULT_SITE: GLIDEIN_REQUIRED_OS = rhel6" in [note.path for note in found.notes]


@pytest.mark.parametrize(
    ("own", "published", "cpus", "memory"),
    [
        ("{submit_attrs: {+WantWholeNode: True}}", "{}", 32, None),
        ("{}", "{submit_attrs: {+WantWholeNode: true}}", 32, None),
        ("{submit_attrs: {+WantWholeNode: 'True'}, attrs: {GLIDEIN_ESTIMATED_CPUS: 128}}", "{}", 128, None),
        ("{submit_attrs: {+WantWholeNode: True}}", "{attrs: {GLIDEIN_CPUS: {value: 64}}}", 64, None),
        ("{submit_attrs: {+WantWholeNode: True, +xcount: 40}}", "{}", 40, None),
        ("{submit_attrs: {+WantWholeNode: True}, attrs: {GLIDEIN_MaxMemMBs: 128000}}", "{}", 32, 128000),
        ("{submit_attrs: {+WantWholeNode: True, +maxMemory: 64000}}", "{}", 32, 64000),
        ("{attrs: {GLIDEIN_ESTIMATED_CPUS: {value: 40}}}", "{}", 40, None),
        ("{attrs: {GLIDEIN_ESTIMATED_CPUS: {value: 40}}}", "{gridtype: condor}", 1, 2500),
        ("{submit_attrs: {+WantWholeNode: False}}", "{}", 1, 2500),
    ],
)
def test_a_whole_node_is_not_of_the_size_that_other_entries_have(
    own: str, published: str, cpus: int, memory: int | None
):
    found = values_of_one(generated(own, published))
    assert (found["NumberOfProcessors"], found.get("MaxRAM")) == (cpus, memory)


@pytest.mark.parametrize("files", [["default.yml"], ["default.yml", "also.yml"]])
def test_what_is_so_of_all_entries_is_none(files: list[str]):
    with pytest.raises(ConfigError, match="no entries"):
        glidein_factory.propose_factory(NOTHING, dict.fromkeys(files, OF_GENERATOR))


@pytest.mark.parametrize(
    ("name", "gatekeeper", "site", "message"),
    [
        ("E", "ce.a.org", "Lehigh - Hawk", "GLIDEIN_Site 'Lehigh - Hawk' is not allowed"),
        ("E", "ce.a.org", "X: INFN", "GLIDEIN_Site 'X: INFN' is not allowed"),
        ("A:b/c", "ce.a.org", "A", "its name 'A:b/c' is not allowed"),
        ("E", "", "A", "it has no gatekeeper"),
        ("E", "", "", "it has no gatekeeper, no GLIDEIN_Site"),
        ("", "ce.a.org", "A", "it has no name"),
        ("E", "ce.a.org", "A" * 130, "is not allowed"),
    ],
)
def test_the_cause_is_told_of_an_entry_that_is_not_carried_over(
    name: str, gatekeeper: str, site: str, message: str
):
    text = ENTRY.format(attrs="", submit="").replace('name="E"', f'name="{name}"')
    text = text.replace("ce.a.org ce.a.org:9619", gatekeeper)
    text = text.replace('"GLIDEIN_Site" value="A"', f'"GLIDEIN_Site" value="{site}"')
    found = glidein_factory.propose_factory(NOTHING, {"factory.xml": text})
    assert found.proposal.after.addresses == ()
    [note] = found.notes
    assert note.message.startswith("not carried over: ")
    assert message in note.message
    assert ("allowed are letters, digits" in note.message) == ("is not allowed" in message)


@pytest.mark.parametrize(
    ("name", "value", "expected", "notes"),
    [
        ("Resource_Slots", "io,2;GPUs,3,type=main", {"GPUs": 3}, [" = io,2"]),
        ("Resource_Slots", "gpus, 2; ", {"GPUs": 2}, []),
        ("Resource_Slots", "GPUs,3,,main", {"GPUs": 3}, []),
        ("Resource_Slots", "GPUs,2,1024", {"GPUs": 2}, ["/memory = 1024"]),
        ("Resource_Slots", "GPUs,2,1024,type=static", {"GPUs": 2}, ["/memory = 1024", "/type = static"]),
        ("Resource_Slots", "gpus,1,32768,static", {"GPUs": 1}, ["/memory = 32768", "/type = static"]),
        ("Resource_Slots", "GPUs , 3 ,type=static", {"GPUs": 3}, ["/type = static"]),
        ("Resource_Slots", "GPUs,type=main,number=3", {"GPUs": 3}, []),
        ("Resource_Slots", "GPUs,many", {}, [" = GPUs,many"]),
        ("Resource_Slots", "GPUs,number=3,type=main", {"GPUs": 3}, []),
        ("Resource_Slots", "GPUs,type=main", {}, [" = GPUs,type=main"]),
        ("ARCH", "x86_64,aarch64", {}, [" = x86_64,aarch64"]),
        ("ARCH", "aarch64, ", {"Architecture": "aarch64"}, []),
        ("ARCH", "x86_64,any", {}, [" = x86_64,any"]),
        ("REQUIRED_OS", "rhel7, rhel8", {"OS": ("rhel7", "rhel8")}, []),
        ("REQUIRED_OS", "rhel7,any", {}, [" = rhel7,any"]),
        *(("REQUIRED_OS", system, {}, [f" = {system}"]) for system in ("any", "default", "ANY")),
    ],
)
def test_attributes_with_several_values_or_any(
    name: str, value: str, expected: dict[str, object], notes: list[str]
):
    text = ENTRY.format(attrs=_attributes("attr", {f"GLIDEIN_{name}": value}), submit="")
    found = glidein_factory.propose_factory(NOTHING, {"factory.xml": text})
    assert values_of_one(found) == {"Name": "A", "CEType": "HTCondorCE", "VO": ("cms",), **expected}
    assert [note.path for note in found.notes] == [f"GLIDEIN_{name}{note}" for note in notes]


@pytest.mark.parametrize("rsl", ['(queue="gq")', "(queue=gq)", "( queue = 'gq' )"])
def test_the_queue_of_rsl_may_be_quoted(rsl: str):
    text = ENTRY.format(attrs="", submit="").replace("<entry ", f"<entry rsl={quoteattr(rsl)} ")
    found = glidein_factory.propose_factory(NOTHING, {"factory.xml": text})
    assert (values_of_one(found)["BatchQueue"], found.notes) == ("gq", ())
    escaped = html.escape(rsl)
    in_yaml = f'Lab: {{ce1: {{E: {{rsl: "{escaped}", attrs: {{GLIDEIN_Supported_VOs: CMS}}}}}}}}'
    found = glidein_factory.propose_factory(NOTHING, {"OSG.yml": in_yaml})
    assert (values_of_one(found)["BatchQueue"], found.notes) == ("gq", ())


IN_SETS = """<glidein>
<entries><entry name="Alone" gatekeeper="ce3.a.org" gridtype="condor"><attrs>
<attr name="GLIDEIN_Site" value="A"/><attr name="GLIDEIN_Supported_VOs" value="CMS"/>
</attrs></entry></entries>
<entry_sets><entry_set alias="A_all" enabled="{of_set}" gridtype="arc">
<config><max_jobs><per_entry glideins="1001" held="3" idle="21"/></max_jobs>
<submit><submit_attrs><submit_attr name="+queue" value="long"/></submit_attrs></submit></config>
<allow_frontends>{frontends}</allow_frontends>
<attrs><attr name="GLIDEIN_Site" value="A"/><attr name="GLIDEIN_Supported_VOs" value="CMS,ATLAS"/>
<attr name="GLIDEIN_CPUS" value="8"/><attr name="GLIDEIN_DISK" value="20GB"/></attrs>
<entries>
<entry name="First" enabled="True" gatekeeper="ce1.a.org ce1.a.org:9620" rsl="(count=8)"/>
<entry name="Second" enabled="{of_entry}" gatekeeper="ce2.a.org" gridtype="condor"><attrs>
<attr name="GLIDEIN_CPUS" value="4"/></attrs></entry>
</entries></entry_set></entry_sets></glidein>"""


def test_entries_of_a_set_have_what_the_set_states_and_share_its_limits():
    text = IN_SETS.format(of_set="True", of_entry="True", frontends="")
    found = glidein_factory.propose_factory(NOTHING, {"factory.xml": text})
    config = found.proposal.after
    values = {place.queue: dict(config.values(place, "atlas")) for place in config.addresses}
    of_set = {
        "Name": "A",
        "VO": ("cms", "atlas"),
        "BatchQueue": "long",
        "MaxTotalJobs": 500,
        "MaxWaitingJobs": 10,
    }
    assert values == {
        "Alone": {"Name": "A", "VO": ("cms",), "CEType": "HTCondorCE"},
        "First": {**of_set, "CEType": "AREX", "Endpoint": "ce1.a.org:9620", "NumberOfProcessors": 8},
        "Second": {**of_set, "CEType": "HTCondorCE", "NumberOfProcessors": 4},
    }
    assert {note.path: note.message for note in found.notes} == {
        "attrs/GLIDEIN_DISK": "not carried over (2 places)",
        "entry_set/alias": "not carried over (1 place)",
        "per_entry/held": "not carried over (2 places)",
        "rsl": "not carried over (1 place)",
    }


DOWNTIME = """</allow_frontends>
<attrs><attr name="GLIDEIN_In_Downtime" value="True"/></attrs><allow_frontends>"""


@pytest.mark.parametrize(
    ("of_set", "of_entry", "frontends", "open_queues"),
    [
        ("True", "False", "", {"Alone", "First"}),
        ("False", "True", "", {"Alone"}),
        ("perhaps", "True", "", {"Alone"}),
        ("True", "True", '<allow_frontend name="Fermi"/>', {"Alone"}),
        ("True", "True", DOWNTIME, {"Alone"}),
    ],
)
def test_a_closed_set_closes_its_entries(of_set: str, of_entry: str, frontends: str, open_queues: set[str]):
    text = IN_SETS.format(of_set=of_set, of_entry=of_entry, frontends=frontends)
    config = glidein_factory.propose_factory(NOTHING, {"factory.xml": text}).proposal.after
    assert {place.queue for place in config.addresses if config.usable(place, "cms")} == open_queues


@pytest.mark.parametrize(
    ("glideins", "limit", "notes"), [("999999", None, ["glideins = 999999"]), ("0", 0, []), ("99", 99, [])]
)
def test_a_limit_that_states_none_is_left_out_and_told(glideins: str, limit: int | None, notes: list[str]):
    most = f'<max_jobs><per_entry glideins="{glideins}"/></max_jobs><submit>'
    text = ENTRY.format(attrs="", submit="").replace("<submit>", most)
    found = glidein_factory.propose_factory(NOTHING, {"factory.xml": text})
    assert values_of_one(found).get("MaxTotalJobs") == limit
    assert [note.path for note in found.notes] == notes


def test_an_entry_whose_whole_node_cannot_be_read_is_carried_over_without_it():
    text = ENTRY.format(attrs="", submit=_attributes("submit_attr", {"+WantWholeNode": "1"}))
    found = glidein_factory.propose_factory(NOTHING, {"factory.xml": text})
    assert "Enabled" not in values_of_one(found)
    [note] = found.notes
    assert note.message == "+WantWholeNode is not carried over: '1', allowed is true or false"


@pytest.mark.parametrize(
    ("key", "host", "endpoint"),
    [
        ("ce1.example.org:9619", "ce1.example.org", None),
        ("ce1.example.org:9620", "ce1.example.org", "ce1.example.org:9620"),
        ("https://arc.example.org:443/arex", "arc.example.org", None),
    ],
)
def test_the_key_of_a_gatekeeper_may_have_a_port(key: str, host: str, endpoint: str | None):
    text = f"Lab: {{'{key}': {{standard: {{One: {{attrs: {{GLIDEIN_Supported_VOs: CMS}}}}}}}}}}"
    found = glidein_factory.propose_factory(NOTHING, {"OSG.yml": text})
    [place] = found.proposal.after.addresses
    assert (place.ce, values_of_one(found).get("Endpoint"), found.notes) == (host, endpoint, ())


@pytest.mark.parametrize("number", ["many", "-1", "", "\u0665", "9" * 5000])
def test_an_entry_whose_limit_cannot_be_read_is_closed(number: str):
    limits = f'<config><max_jobs><per_entry glideins="{number}"/></max_jobs></config></entry>'
    text = ENTRY.format(attrs="", submit="").replace("</entry>", limits)
    text = text.replace("<config><submit><submit_attrs></submit_attrs></submit></config>", "")
    found = glidein_factory.propose_factory(NOTHING, {"factory.xml": text})
    assert values_of_one(found)["Enabled"] is False
    [note] = found.notes
    assert f"glideins {number!r:.60}" in note.message


def test_a_condition_is_told_with_its_quotes():
    attrs = '<attr name="GLIDEIN_Entry_Start" value="Project=?=&quot;x&quot;"/>'
    own = "{attrs: {GLIDEIN_Entry_Start: {value: 'Project=?=&quot;x&quot;'}, GLIDEIN_Supported_VOs: CMS}}"
    files = ENTRY.format(attrs=attrs, submit=""), f"Lab: {{ce1: {{E: {own}}}}}"
    for text in files:
        [note] = glidein_factory.propose_factory(NOTHING, {"factory": text}).notes
        assert note.message.endswith("""GLIDEIN_Entry_Start is 'Project=?="x"'""")
