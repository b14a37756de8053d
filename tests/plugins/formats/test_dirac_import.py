"""DIRAC's configuration text: its grammar, its layouts, and the way there and back."""

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cs_config import validate
from cs_config.errors import ConfigError
from cs_config.formats import dirac_text
from cs_config.options import option_model
from cs_config.options.option_model import Options
from cs_config.source import diff
from cs_config.source.sections import to_plain
from cs_config.versions.store import NOTHING
from pilotage.plugins.formats import dirac_import
from pilotage.plugins.formats.dirac_import import DiracLayout

EXAMPLES = Path(__file__).parents[3] / "examples"


def tree(text: str) -> Any:
    return to_plain(dirac_text.read_text(text, "x.cfg", repeated={}))


def test_a_section_opens_on_its_line_or_on_the_next_and_values_are_lines():
    text = """
    # a comment
    A
    {
      x = 1 # stays
      y=a=b
      z =
      B { C { } }
      l = one
      l += two
      l += three
    }
    x = 1
    x = 2
    """
    section = {"x": "1 # stays", "y": "a=b", "z": "", "B": {"C": {}}, "l": "one, two, three"}
    assert tree(text) == {"A": section, "x": "2"}


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("A\n{\n x = 1\n", "x.cfg:1"),
        ("}\n", "closes nothing"),
        ("{\n}\n", "without the name"),
        ("A {\n}\nA {\n}\n", "A is defined twice, the first time in line 1"),
        ("A {\n}\nA = 1\n", "A is a section already, in line 1"),
        ("word\nx = 1\n", "'word' is neither an option nor a section"),
        ("word", "'word' is neither an option nor a section"),
        (" = 1", "an option has a name"),
        ("A {" * 60, "nested more than 50 deep"),
    ],
)
def test_what_is_wrong_is_told_with_its_line(text: str, said: str):
    with pytest.raises(ConfigError, match=said) as caught:
        tree(text)
    assert all(problem.line for problem in caught.value.problems)


CURRENT = """
DIRAC
{
  Setup = Production
}
Resources
{
  Sites
  {
    LCG
    {
      LCG.CERN.ch
      {
        Name = CERN, Geneva
        VO = lhcb, biomed
        CEs
        {
          CEType = HTCondorCE
          ce503.cern.ch
          {
            architecture = x86_64
            VO = lhcb
            Queues
            {
              long
              {
                maxCPUTime = 2880
                SI00 = 3100
                Tag = Multi
                Tag += Long
                WholeNode = True
                MaxRAMM = 5
              }
            }
          }
        }
      }
    }
  }
  Computing
  {
    OSCompatibility
    {
      x86_64-el9 = x86_64-el8, x86_64-el9
    }
    CEDefaults
    {
      MaxRAM = 2048
      CEType = Local
      NumberOfProcessors = 1
    }
    HTCondorCE
    {
      NumberOfProcessors = 8
    }
    CREAM
    {
      MaxRAM = 1
    }
  }
  StorageElements
  {
  }
}
Operations
{
  Defaults
  {
    JobScheduling
    {
      MaxRescheduling = 5
      CheckJobLimits = True
    }
  }
}
Registry
{
  Users
  {
  }
  VO
  {
    lhcb
    {
    }
  }
}
"""


def test_todays_layout_becomes_ours_and_what_is_left_out_is_told():
    found = dirac_import.propose_dirac(NOTHING, {"dirac.cfg": CURRENT})
    site = found.proposal.after.tree["Resources"]["Sites"]["LCG.CERN.ch"]
    assert site == {
        "Name": "CERN, Geneva",
        "VO": ["lhcb", "biomed"],
        "CEType": "HTCondorCE",
        "CEs": {
            "ce503.cern.ch": {
                "architecture": "x86_64",
                "VO": "lhcb",
                "MaxRAM": 2048,
                "NumberOfProcessors": 8,
                "Queues": {
                    "long": {"maxCPUTime": 2880, "SI00": 3100, "Tag": ["Multi", "Long"], "WholeNode": True}
                },
            }
        },
    }
    assert found.proposal.after.os_compatibility == {"x86_64-el9": ("x86_64-el8", "x86_64-el9")}
    assert found.proposal.after.tree["Operations"]["Defaults"] == {"JobScheduling": {"MaxRescheduling": 5}}
    notes = {note.path: note.message for note in found.notes}
    assert set(notes) == {
        "DIRAC",
        "Resources/StorageElements",
        "Resources/Computing/CREAM",
        "Resources/Sites/LCG.CERN.ch/CEs/ce503.cern.ch/Queues/long/MaxRAMM",
    }
    assert (
        "did you mean MaxRAM?" in notes["Resources/Sites/LCG.CERN.ch/CEs/ce503.cern.ch/Queues/long/MaxRAMM"]
    )


RFC5 = """
Resources
{
  Domains
  {
    EGI
    {
      Description = European
    }
  }
  Sites
  {
    CNAF
    {
      Domains = EGI, LCG
      Country = IT
      Communities = lhcb, biomed
      Computing
      {
        ce01.cnaf.it
        {
          CEType = ARC
          lhcb
          {
            MaxRAM = 4000
          }
          Queues
          {
            prod
            {
              MaxRAM = 2000
              Communities = lhcb
              biomed
              {
                MaxRAM = 3000
              }
            }
          }
        }
      }
      Storage
      {
        disk
        {
        }
      }
    }
  }
}
"""


def test_the_layout_of_rfc_5_becomes_ours():
    found = dirac_import.propose_dirac(NOTHING, {"rfc5.cfg": RFC5})
    config = found.proposal.after
    assert config.tree["Resources"]["Sites"]["EGI.CNAF.it"]["VO"] == ["lhcb", "biomed"]
    [queue] = config.addresses
    assert str(queue) == "EGI.CNAF.it/ce01.cnaf.it/prod"
    assert config.usable(queue, "lhcb")
    assert not config.usable(queue, "biomed")
    assert [config.values(queue, vo)["MaxRAM"] for vo in ("lhcb", "biomed", "")] == [2000, 3000, 2000]
    notes = {note.path: note.message for note in found.notes}
    site = "Resources/Sites/CNAF"
    assert set(notes) == {"Resources/Domains", site, f"{site}/Storage"}
    assert "not in LCG" in notes[site]


@pytest.mark.parametrize("option", ["Domain = EGI", "Domain = EGI, LCG", "Domains = EGI\nDomain = LCG"])
def test_a_site_of_rfc_5_is_called_after_its_domain_in_either_spelling(option: str):
    """Source: `ConfigurationSystem/test/resources.cfg` of DIRAC, which has `Domain`."""
    found = dirac_import.propose_dirac(NOTHING, {"rfc5.cfg": RFC5.replace("Domains = EGI, LCG", option)})
    assert list(found.proposal.after.tree["Resources"]["Sites"]) == ["EGI.CNAF.it"]


def test_defaults_of_ces_alone_leave_no_empty_section():
    computing, sites = (
        "Computing {\nCEDefaults {\nVO = lhcb\n}\n}\n",
        "LCG {\nLCG.A.org {\nCEs {\nce1 {\n}\n}\n}\n}\n",
    )
    text = f"Resources {{\n{computing}Sites {{\n{sites}}}\n}}\n"
    proposal = dirac_import.propose_dirac(NOTHING, {"dirac.cfg": text}).proposal
    assert diff.list_paths(proposal.differences) == ("Resources/Sites",)
    assert proposal.after.tree["Resources"]["Sites"]["LCG.A.org"]["CEs"] == {"ce1": {"VO": "lhcb"}}


def test_an_import_is_laid_over_what_is_there_and_says_what_changes():
    config = validate.parse(
        "# ours\nResources:\n  Sites:\n    LCG.CERN.ch:\n      VO: [lhcb, biomed]\n      OS: el9  # kept\n",
        "x",
    )
    proposal = dirac_import.propose_dirac(config, {"dirac.cfg": CURRENT}).proposal
    assert "OS: el9  # kept" in proposal.after.source
    assert "Resources/Sites/LCG.CERN.ch/VO" not in diff.list_paths(proposal.differences)
    assert "Resources/Sites/LCG.CERN.ch/CEs" in diff.list_paths(proposal.differences)
    again = dirac_import.propose_dirac(proposal.after, {"dirac.cfg": CURRENT}).proposal
    assert again.differences == ()
    assert again.after.source == proposal.after.source


def without(tree: Any, left_out: tuple[str, ...]) -> Any:
    """The tree without what could not be said; names without anything are empty sections."""
    gone = {each.split(": ")[0] for each in left_out}

    def walk(entry: Any, path: tuple[str, ...]) -> Any:
        if not isinstance(entry, dict):
            return entry
        kept = {name: walk(below, (*path, name)) for name, below in entry.items()}
        return {name: below for name, below in kept.items() if "/".join((*path, name)) not in gone}

    return walk(tree, ())


@pytest.mark.parametrize("file", sorted(EXAMPLES.glob("*/resources.yaml")), ids=lambda file: file.parent.name)
def test_the_examples_come_back_as_they_were(file: Path):
    config = validate.load_file(file)
    exported = dirac_text.export_dirac(config.tree, with_disabled=True)
    found = dirac_import.propose_dirac(NOTHING, {"back.cfg": exported.text})
    assert found.notes == ()
    wanted = without(config.tree, exported.left_out)
    assert diff.compare(wanted, found.proposal.after.tree) == ()
    assert len(exported.left_out) < 10


WORDS = st.sampled_from(
    ["el9", "8", "1e3", "True", "null", "a, b", "x #y", " blank ", "", "a=b", "{", "two\nlines"]
)
VALUES = st.one_of(
    WORDS, st.integers(-5, 5), st.booleans(), st.floats(0, 1), st.none(), st.lists(WORDS, max_size=3)
)
SITES = st.dictionaries(
    st.sampled_from(["LCG.A.ch", "LCG.B.ch", "Plain"]),
    st.dictionaries(st.sampled_from(["OS", "Own", "Other", "Mine=x", "#odd"]), VALUES, max_size=4).map(
        lambda values: {**values, "CEs": {"ce": {"VOs": {"cms": values}, "Queues": {"q": {}}}}}
    ),
    max_size=3,
)


@given(SITES)
def test_what_the_text_can_say_comes_back_and_the_rest_is_told(sites):
    whole = {"Resources": {"Sites": sites}}
    exported = dirac_text.export_dirac(whole, with_disabled=True)
    back = DiracLayout(file="x").to_our_layout(dirac_text.read_text(exported.text, "x"))
    assert diff.compare(without(whole, exported.left_out), back) == ()


@given(VALUES)
def test_a_value_that_is_written_is_read_again(value):
    written = dirac_text.write_value("Own", value)
    if written is not None:
        joined = ", ".join(written) if isinstance(written, list) else written
        assert repr(dirac_text.read_value("Own", joined)) == repr(value)


MEMBERS = """
Registry
{
  Users
  {
    ada
    {
      DN = /DC=ch/O=CERN, Geneva/CN=ada, /C=fr/CN=ada
      Email = ada@example.org
    }
    eve
    {
      DN = /DC=ch/CN=eve
      Suspended = lhcb
    }
  }
  Hosts
  {
    rms.example.org
    {
      DN = /DC=ch/CN=rms.example.org
      Properties = TrustedHost, JobAdministrator
    }
  }
  VO
  {
    lhcb
    {
    }
  }
}
"""


def test_certificates_of_users_and_hosts_are_carried_over_but_not_of_suspended_users():
    found = dirac_import.propose_dirac(NOTHING, {"dirac.cfg": MEMBERS})
    registry = found.proposal.after.registry
    assert registry.users_by_dn == {"/DC=ch/O=CERN, Geneva/CN=ada": "ada", "/C=fr/CN=ada": "ada"}
    assert registry.hosts["rms.example.org"].properties == ("TrustedHost", "JobAdministrator")
    assert [(note.path, note.message) for note in found.notes] == [
        ("Registry/Users/eve", "not carried over: it is suspended"),
        ("Registry/Users/*/Email", "not carried over (1 place)"),
    ]


def test_a_user_suspended_since_the_last_import_loses_its_certificate():
    text = "Registry\n{{\n  Users\n  {{\n    ada\n    {{\n      DN = /CN=ada\n{}    }}\n  }}\n}}\n"
    first = dirac_import.propose_dirac(NOTHING, {"x.cfg": text.format("")}).proposal.after
    assert "/CN=ada" in first.registry.users_by_dn
    again = dirac_import.propose_dirac(
        first, {"x.cfg": text.format("      Suspended = lhcb\n")}
    ).proposal.after
    assert "/CN=ada" not in again.registry.users_by_dn


@pytest.mark.parametrize(
    ("name", "text", "value"),
    [
        ("OSVersion", "9.10", "9.10"),
        ("OSVersion", "9.4", "9.4"),
        ("Rev", "1e3", "1e3"),
        ("Release", "1_000", "1_000"),
        ("Build", "007", "007"),
        ("Hex", "0x1F", "0x1F"),
        ("Start", "12:30", "12:30"),
        ("Three", "9.4.1", "9.4.1"),
        ("Versions", "9.4, 9.10", ["9.4", "9.10"]),
        ("Factor", "9.4", 9.4),
        ("Factor", "1.50", 1.5),
        ("Factor", "-2.00", -2.0),
        ("Factors", "1.50, 2.0", [1.5, 2.0]),
        ("Factor", "01.50", "01.50"),
        ("Kernel", "5.10", "5.10"),
        ("Python3", "3.10", "3.10"),
        ("CPUTime", "1e3", 1000.0),
        ("MaxRAM", "4000", 4000),
    ],
)
def test_texts_that_numbers_cannot_hold_stay_texts(name: str, text: str, value: object) -> None:
    found = dirac_text.read_value(name, text)
    assert (type(found), found) == (type(value), value)


def test_a_name_that_can_be_in_no_address_is_left_out_alone():
    text = """
    Resources { Sites { LCG {
      LCG.A.org { CEs {
        ce1.a.org { CEType = HTCondorCE
          Queues { good { maxCPUTime = 100 } "bad/queue" { maxCPUTime = 200 } } }
        ce2|x { Queues { q { maxCPUTime = 100 } } }
      } }
    } } }
    """.replace('"', "")
    found = dirac_import.propose_dirac(NOTHING, {"dirac.cfg": text})
    assert [str(each) for each in found.proposal.after.addresses] == ["LCG.A.org/ce1.a.org/good"]
    left = [each.path for each in found.notes if "allowed in a name are" in each.message]
    assert left == [
        "Resources/Sites/LCG.A.org/CEs/'ce2|x'",
        "Resources/Sites/LCG.A.org/CEs/ce1.a.org/Queues/'bad/queue'",
    ]


WRONG = """
DIRAC {
    Setup = Prod
    Setups { Prod { } Other { } } }
Resources {
Sites { LCG { LCG.A.ch {
    VO = lhcb
    Status = Banned
    CEs {
        CEType = SSH
        ce1 {
            CEType = ARC
            MaxRAM = much
            Queues {
                q {
                    maxCPUTime = 0
                    MaxRAMM = 5
                    RequiredTag = True
                }
                q|r {
                    maxCPUTime = 5
                }
            }
        }
    }
} } }
Computing {
    CEDefaults {
        NumberOfProcessors = many
        WholeNode = perhaps
    }
    ARC {
        NumberOfProcessors = few
    }
    SSH {
        A = 1
    }
} }
Operations {
    Defaults { JobScheduling {
        MaxReschedulings = 2
    } JobDescription {
        MaxCPUTime = often
    } }
    Other { JobScheduling { MaxRescheduling = 1
    } }
    Prod { JobScheduling {
        MaxReschedulings = 1
    } }
    lhcb { Prod { JobScheduling {
        EnableSharesCorrection = perhaps
    } } }
}
Registry {
    Users { ada {
        DN = /CN=ada
        Email = ada@example.org
    } }
    VO { lhcb {
        VOMSName = lhcb
    } }
}
"""


def find_lines(text: str) -> dict[str, str]:
    """The line of each note, by its path."""
    notes = dirac_import.propose_dirac(NOTHING, {"dirac.cfg": text}).notes
    lines = text.splitlines()
    return {note.path: lines[note.line - 1].strip() if note.line else "" for note in notes}


def test_every_note_has_the_line_that_it_is_about() -> None:
    ce = "Resources/Sites/LCG.A.ch/CEs/ce1"
    assert find_lines(WRONG) == {
        "DIRAC": "DIRAC {",
        "Resources/Sites/LCG.A.ch/Status": "Status = Banned",
        f"{ce}/MaxRAM": "MaxRAM = much",
        f"{ce}/NumberOfProcessors": "NumberOfProcessors = few",
        f"{ce}/WholeNode": "WholeNode = perhaps",
        f"{ce}/Queues/'q|r'": "q|r {",
        f"{ce}/Queues/q/maxCPUTime": "maxCPUTime = 0",
        f"{ce}/Queues/q/MaxRAMM": "MaxRAMM = 5",
        "Resources/Computing/SSH": "SSH {",
        "Operations/Other": "Other { JobScheduling { MaxRescheduling = 1",
        "Operations/Defaults/JobScheduling/MaxReschedulings": "MaxReschedulings = 1",
        "Operations/Defaults/JobDescription/CPUTime/max": "MaxCPUTime = often",
        "Operations/lhcb/JobScheduling/EnableSharesCorrection": "EnableSharesCorrection = perhaps",
        "Registry/Users/*/Email": "Email = ada@example.org",
        "Registry/VO/lhcb/VOMSName": "VOMSName = lhcb",
    }


def test_so_have_notes_of_the_layout_of_rfc_5() -> None:
    text = RFC5.replace("MaxRAM = 2000", "MaxRAMM = 2000").replace("MaxRAM = 3000", "MaxRAM = lots")
    text = text.replace("MaxRAM = 4000", "Enabled = perhaps")
    text = text.replace("CEType = ARC", "CEType = ARC\nNumberOfProcessors = few")
    ce = "Resources/Sites/EGI.CNAF.it/CEs/ce01.cnaf.it"
    assert find_lines(text) == {
        "Resources/Domains": "Domains",
        "Resources/Sites/CNAF": "CNAF",
        "Resources/Sites/CNAF/Storage": "Storage",
        f"{ce}/NumberOfProcessors": "NumberOfProcessors = few",
        f"{ce}/VOs/lhcb/Enabled": "Enabled = perhaps",
        f"{ce}/VOs/lhcb": "lhcb",
        f"{ce}/Queues/prod/MaxRAMM": "MaxRAMM = 2000",
        f"{ce}/Queues/prod/VOs/biomed/MaxRAM": "MaxRAM = lots",
    }


_UNSTATED = {
    "CPUTime": ["999999999", "0", "9" * 12, "2147483647"],
    "maxCPUTime": ["999999", "0"],
    "maxWallClockTime": ["0", "999999999"],
    "MaxRAM": ["444444", "999999", "0"],
    "MaxRAMPerCore": ["0"],
    "MaxScratch": ["2147483647", "0"],
    "NumberOfProcessors": ["0"],
    "NumberOfNodes": ["0"],
    "SI00": ["0", "444444"],
    "CPUNormalizationFactor": ["0", "0.0"],
    "GPUMemory": ["0", "999999"],
    "GPUs": ["999999"],
    "MaxTotalJobs": ["999999999"],
    "MaxWaitingJobs": ["444444"],
}
_LEVELS = {
    "queue": "CEs {{ ce {{ Queues {{ q {{ {} }} }} }} }}",
    "CE": "CEs {{ ce {{ {} \n Queues {{ q {{ }} }} }} }}",
    "site": "{} \n CEs {{ ce {{ Queues {{ q {{ }} }} }} }}",
}


def propose_with(option: str, level: str = "queue") -> Any:
    """Values of the one queue in a text with an option at a level, and the notes."""
    site = _LEVELS[level].format(f"\n{option}\n")
    text = f"Resources {{\n Sites {{ LCG {{ LCG.A.ch {{ {site} }} }} }}\n}}\n"
    found = dirac_import.propose_dirac(NOTHING, {"dirac.cfg": text})
    [queue] = found.proposal.after.addresses
    lines = text.splitlines()
    noted = [(lines[note.line - 1] if note.line else "", note.message) for note in found.notes]
    return found.proposal.after.values(queue, ""), noted


@pytest.mark.parametrize("level", sorted(_LEVELS))
@pytest.mark.parametrize(
    ("name", "number"), [(name, each) for name, numbers in _UNSTATED.items() for each in numbers]
)
def test_a_number_that_states_none_is_left_out_and_noted(name: str, number: str, level: str) -> None:
    values, noted = propose_with(f"{name} = {number}", level)
    assert values == {}
    [(line, message)] = noted
    assert line == f"{name} = {number}"
    assert "states no number" in message


@pytest.mark.parametrize(
    ("name", "number"),
    [
        ("MaxTotalJobs", 0),
        ("MaxWaitingJobs", 0),
        ("GPUs", 0),
        ("NumberOfGPUs", 0),
        ("MoUTierLevel", 0),
        ("MaxRAM", 99999),
        ("CPUTime", 4444),
        ("Own", 999999),
    ],
)
def test_a_number_that_means_something_stays(name: str, number: int) -> None:
    values, noted = propose_with(f"{name} = {number}")
    assert values[name] == number
    assert noted == []


@pytest.mark.parametrize(
    ("word", "value"),
    [("yes", True), ("Y", True), ("1", True), ("TRUE", True), ("no", False), ("0", False), ("n", False)],
)
def test_options_that_are_true_or_false_have_diracs_spellings(word: str, value: object) -> None:
    text = f"""
    Operations {{ Defaults {{ JobScheduling {{
    EnableSharesCorrection = {word}
    MaxRescheduling = 1
    }} }}
    lhcb {{ Prod {{ JobScheduling {{
    EnableUserPriority = {word}
    }} }} }} }}
    DIRAC {{
    Setup = Prod
    }}
    Registry {{ Groups {{ lhcb_user {{
    VO = lhcb
    AllowBackgroundTQs = {word}
    JobShare = 1
    }} }} }}
    """
    tree = dirac_import.propose_dirac(NOTHING, {"dirac.cfg": text}).proposal.after.tree
    assert tree["Operations"]["Defaults"]["JobScheduling"] == {
        "EnableSharesCorrection": value,
        "MaxRescheduling": 1,
    }
    assert tree["Operations"]["lhcb"]["JobScheduling"] == {"EnableUserPriority": value}
    group = tree["Registry"]["Groups"]["lhcb_user"]
    assert (group["AllowBackgroundTQs"], group["JobShare"]) == (value, 1)
    assert type(group["JobShare"]) is int


def test_names_of_options_that_are_true_or_false_are_nothing_else_elsewhere() -> None:
    def list_names(model: type[Options]) -> set[str | None]:
        own = {each.alias for each in model.model_fields.values() if each.annotation is not bool}
        return own.union(*map(list_names, model.__subclasses__()))

    flags = option_model.list_flags()
    assert {"EnableSharesCorrection", "AllowBackgroundTQs", "NarrowSites"} <= flags
    assert not flags & list_names(Options)


@pytest.mark.parametrize(
    ("text", "left"),
    [
        ("Operations { lhcb { JobScheduling {\nEnableSharesCorrection = perhaps\n} } }", {}),
        (
            "Operations { lhcb { JobScheduling {\nEnableSharesCorrection = perhaps\n}\n Limits { } } }",
            {"Operations": {"lhcb": {"Limits": {}}}},
        ),
        (
            "Registry { Groups { lhcb_user {\nAllowBackgroundTQs = perhaps\n} } }",
            {"Registry": {"Groups": {"lhcb_user": {}}}},
        ),
    ],
)
def test_a_section_whose_only_value_is_refused_is_left_out(text: str, left: dict[str, object]) -> None:
    found = dirac_import.propose_dirac(NOTHING, {"dirac.cfg": text})
    assert found.proposal.after.tree == {**NOTHING.tree, **left}
    assert "not carried over" in found.notes[0].message
