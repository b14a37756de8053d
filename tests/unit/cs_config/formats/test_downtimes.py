"""Feeds of downtimes: GOCDB's XML, and XML and YAML of OSG's topology."""

from datetime import UTC, datetime

import pytest

from cs_config.errors import ConfigError
from cs_config.formats import downtimes
from cs_config.formats.downtimes import DowntimeFeed, FeedEntry

GOCDB = """<?xml version="1.0" encoding="UTF-8"?>
<results>
<DOWNTIME ID="32893" PRIMARY_KEY="119G0" CLASSIFICATION="SCHEDULED">
  <PRIMARY_KEY>119G0</PRIMARY_KEY>
  <HOSTNAME>ce1.example.org</HOSTNAME>
  <SERVICE_TYPE>org.opensciencegrid.htcondorce</SERVICE_TYPE>
  <HOSTED_BY>EXAMPLE-SITE</HOSTED_BY>
  <AFFECTED_ENDPOINTS/>
  <SEVERITY>OUTAGE</SEVERITY>
  <DESCRIPTION>New cooling</DESCRIPTION>
  <START_DATE>1893456000</START_DATE>
  <END_DATE>1893484800</END_DATE>
</DOWNTIME>
</results>"""
NESTED = """<results><DOWNTIME ID="7" PRIMARY_KEY="7G0">
  <SEVERITY>WARNING</SEVERITY><DESCRIPTION>At risk</DESCRIPTION>
  <START_DATE>1893456000</START_DATE><END_DATE>1893484800</END_DATE>
  <SERVICES>
    <SERVICE><HOSTNAME>ce1.example.org</HOSTNAME><SERVICE_TYPE>ARC-CE</SERVICE_TYPE></SERVICE>
    <SERVICE><HOSTNAME>se.example.org</HOSTNAME><SERVICE_TYPE>SRM</SERVICE_TYPE></SERVICE>
  </SERVICES>
</DOWNTIME></results>"""
OSG_XML = """<Downtimes>
  <CurrentDowntimes/>
  <FutureDowntimes>
    <Downtime>
      <ID>1005710</ID><ResourceName>Example_CE</ResourceName><ResourceFQDN>ce1.example.org</ResourceFQDN>
      <StartTime>Jan 01, 2030 13:00 PM UTC</StartTime><EndTime>Jan 02, 2030 01:30 AM UTC</EndTime>
      <Severity>Outage</Severity><Description>Power</Description>
      <Services><Service><ID>1</ID><Name>CE</Name></Service></Services>
    </Downtime>
  </FutureDowntimes>
</Downtimes>"""
OSG_YAML = """
- Class: SCHEDULED
  ID: 1005711
  Description: Racks move
  Severity: Intermittent Outage
  StartTime: Jan 01, 2030 13:00 +0100
  EndTime: Jan 02, 2030 01:30 +0000
  ResourceName: Example_CE
  Services:
  - CE
- ID: 1005712
  Severity: Outage
"""


def read_feed(text: str, file: str) -> DowntimeFeed:
    return downtimes.read_feed(text.encode(), file)


def test_a_downtime_of_a_whole_site_is_told() -> None:
    of_site = GOCDB.replace("<HOSTNAME>ce1.example.org</HOSTNAME>", "<SITENAME>EXAMPLE-SITE</SITENAME>")
    feed = read_feed(of_site.replace("results>", "ROOT>"), "feed.xml")
    assert feed.entries == ()
    assert feed.unreadable == {"119G0": "it names no host, as those of a whole site: plan it by hand"}


def test_gocdb_states_times_as_seconds() -> None:
    feed = read_feed(GOCDB, "feed.xml")
    assert feed.source == "gocdb"
    assert feed.entries == (
        FeedEntry(
            source_id="119G0",
            host="ce1.example.org",
            service="org.opensciencegrid.htcondorce",
            begins=datetime(2030, 1, 1, 0, 0, tzinfo=UTC),
            ends=datetime(2030, 1, 1, 8, 0, tzinfo=UTC),
            severity="OUTAGE",
            reason="New cooling",
        ),
    )


def test_gocdb_may_nest_the_services_of_a_downtime() -> None:
    entries = read_feed(NESTED, "feed.xml").entries
    assert [(each.source_id, each.host, each.service, each.severity) for each in entries] == [
        ("7G0", "ce1.example.org", "ARC-CE", "WARNING"),
        ("7G0", "se.example.org", "SRM", "WARNING"),
    ]


def test_the_hours_of_osg_count_to_24_beside_am_and_pm() -> None:
    [entry] = read_feed(OSG_XML, "feed.xml").entries
    assert (entry.host, entry.service, entry.severity) == ("ce1.example.org", "CE", "OUTAGE")
    assert entry.begins == datetime(2030, 1, 1, 13, 0, tzinfo=UTC)
    assert entry.ends == datetime(2030, 1, 2, 1, 30, tzinfo=UTC)


def test_yaml_of_osg_names_resources_and_what_cannot_be_read_is_noted() -> None:
    feed = read_feed(OSG_YAML, "downtime.yaml")
    [entry] = feed.entries
    assert (feed.source, entry.host, entry.severity) == ("osg", "Example_CE", "WARNING")
    assert entry.begins == datetime(2030, 1, 1, 12, 0, tzinfo=UTC)
    assert feed.unreadable == {"1005712": "it names no service"}


def test_an_entry_with_a_time_beyond_all_calendars_is_noted() -> None:
    one, other = GOCDB.replace("1893484800", "9" * 17), GOCDB.partition("<results>")[2]
    feed = read_feed(one.replace("</results>", other), "feed.xml")
    assert len(feed.entries) == 1
    assert feed.unreadable == {"119G0": f"END_DATE: '{'9' * 17}' is no time in seconds since 1970"}


def test_yaml_without_end_is_refused() -> None:
    texts = (f"- &a{number} [{', '.join([f'*a{number - 1}'] * 10)}]\n" for number in range(1, 20))
    for text in ("- &a0 [x]\n" + "".join(texts), "[" * 5_000):
        with pytest.raises(ConfigError, match=r"line 2|level"):
            read_feed(text, "feed.yaml")


def test_values_beside_those_of_a_downtime_are_not_interpreted() -> None:
    stated = OSG_YAML.replace("- Class: SCHEDULED", "- CreatedTime: 2026-02-30")
    assert len(read_feed(stated, "downtime.yaml").entries) == 1


@pytest.mark.parametrize("text", ["", "<html><body>503</body></html>", "<results>", "a: 1", "<!-- -->"])
def test_what_is_no_feed_is_refused_as_a_whole(text: str) -> None:
    with pytest.raises(ConfigError):
        read_feed(text, "feed")


def test_json_of_cric_is_refused_with_where_its_downtimes_come_from() -> None:
    with pytest.raises(ConfigError, match="CRIC's JSON names no hosts: import what GOCDB and OSG state"):
        read_feed('{"7": {"rc_site": "EXAMPLE-SITE", "severity": "OUTAGE"}}', "cric.json")


@pytest.mark.parametrize(
    "text",
    [
        '<results><SITE ID="1"/></results>',
        "<results><error>Invalid</error></results>",
        "<results>Invalid</results>",
        GOCDB.replace("</results>", "<error/></results>"),
        "<ROOT><SITE/></ROOT>",
        "<Downtimes><Error/></Downtimes>",
        OSG_XML.replace("<CurrentDowntimes/>", "<CurrentDowntimes><Resource/></CurrentDowntimes>"),
        "- CE\n",
        "- {SITE: EXAMPLE}\n",
        GOCDB.replace(' ID="32893" PRIMARY_KEY="119G0"', ""),
    ],
)
def test_an_answer_to_another_question_is_refused_as_a_whole(text: str) -> None:
    with pytest.raises(ConfigError, match=r"downtime|id"):
        read_feed(text, "feed")


@pytest.mark.parametrize(
    "text", ["<results/>", "<results><meta><count>0</count></meta></results>", "<Downtimes/>", "[]"]
)
def test_a_feed_may_state_that_nothing_is_planned(text: str) -> None:
    feed = read_feed(text, "feed")
    assert (feed.entries, feed.unreadable) == ((), {})


def test_a_page_of_a_longer_feed_is_refused_and_its_last_one_is_not() -> None:
    meta = '<meta><link rel="next" href="x"/><count>{}</count><max_page_size>100</max_page_size></meta>'
    with pytest.raises(ConfigError, match="a page of a longer feed"):
        read_feed(GOCDB.replace("</results>", meta.format(100) + "</results>"), "feed.xml")
    whole = GOCDB.replace("</results>", meta.format(1) + "</results>")
    assert read_feed(whole, "feed.xml").entries == read_feed(GOCDB, "feed.xml").entries


@pytest.mark.parametrize(
    ("one", "other", "why"),
    [
        (">1893456000<", ">soon<", "START_DATE: 'soon' is no time in seconds since 1970"),
        (">1893484800<", "><", "END_DATE: '' is no time in seconds since 1970"),
        (">OUTAGE<", "><", "SEVERITY: '' is neither OUTAGE nor WARNING"),
        (">org.opensciencegrid.htcondorce<", "><", "it has no SERVICE_TYPE"),
    ],
)
def test_an_entry_that_cannot_be_read_is_told_by_its_id(one: str, other: str, why: str) -> None:
    feed = read_feed(GOCDB.replace(one, other), "feed.xml")
    assert (feed.entries, feed.unreadable) == ((), {"119G0": why})


@pytest.mark.parametrize(
    ("one", "other", "why"),
    [
        (
            "Jan 01, 2030 13:00 +0100",
            "soon",
            "StartTime: 'soon' is no time such as 'Mar 20, 2026 13:00 +0000'",
        ),
        (
            "13:00 +0100",
            "25:00",
            "StartTime: 'Jan 01, 2030 25:00' is no time such as 'Mar 20, 2026 13:00 +0000'",
        ),
        ("ResourceName: Example_CE", "Resource: x", "it has no ResourceName"),
        ("Intermittent Outage", "", "it has no Severity"),
        ("  - CE", "", "it names no service"),
    ],
)
def test_an_entry_of_osg_that_cannot_be_read_is_told_by_its_id(one: str, other: str, why: str) -> None:
    feed = read_feed(OSG_YAML.replace(one, other), "downtime.yaml")
    assert (feed.entries, feed.unreadable["1005711"]) == ((), why)


def test_a_time_of_osg_without_a_zone_is_utc() -> None:
    [entry] = read_feed(OSG_YAML.replace(" +0100", ""), "downtime.yaml").entries
    assert entry.begins == datetime(2030, 1, 1, 13, 0, tzinfo=UTC)


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "iso-8859-1", "utf-16"])
def test_a_feed_is_read_in_the_encoding_that_it_declares(encoding: str) -> None:
    declared = encoding.removesuffix("-sig")
    text = GOCDB.replace("New cooling", "Réseau").replace("UTF-8", declared)
    [entry] = downtimes.read_feed(text.encode(encoding), "feed.xml").entries
    assert entry.reason == "Réseau"


@pytest.mark.parametrize("encoding", ["iso-8859-1", "nosuch", "utf-7"])
def test_a_feed_in_another_encoding_than_it_declares_is_refused(encoding: str) -> None:
    text = GOCDB.replace("New cooling", "Réseau")
    declared = text if encoding == "iso-8859-1" else text.replace("UTF-8", encoding)
    with pytest.raises(ConfigError, match="not XML"):
        downtimes.read_feed(declared.encode("iso-8859-1"), "feed.xml")
