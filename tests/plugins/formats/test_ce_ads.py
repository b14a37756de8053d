"""CE ads: what they say of themselves, and what is wrong with them."""

from pathlib import Path

import pytest

from pilotage.plugins.formats import ce_ads
from pilotage.plugins.formats.ce_ads import CeAd
from requirements.errors import InvalidInput

SEED = Path(__file__).parents[2] / "data" / "glue_ce.ad"


def read(text: str) -> CeAd:
    [ad] = ce_ads.read_ads(text, "ces.ad")
    return ad


def test_the_ad_of_a_ce_of_2005_is_read_whole() -> None:
    ad = read(SEED.read_text())
    assert (ad.ce, ad.queue, ad.site) == ("atlfarm006.mi.infn.it:2119", "blah-pbs-long", None)
    assert ad.times == {"update_time": 1128351882, "expiry_time": 300}
    assert len(ad.attributes) == 55


@pytest.mark.parametrize(
    "text",
    [
        '[ID = "ce:2119/long"; Update_Time = 5; INFO = [A = 1; b = 2]]',
        '[id = "ce:2119/long"; A = 1; b = 2; update_time = 5]',
        'id = "ce:2119/long"\nA = 1\nupdate_time = 5\nb = 2\n',
        '[A = 1; b = 2; id = "ce:2119/long"; update_time = 5; Derived = {"c"}; c = 3]',
    ],
)
def test_attributes_stand_in_info_or_beside_the_id(text: str) -> None:
    ad = read(text)
    assert (ad.id, ad.times) == ("ce:2119/long", {"update_time": 5})
    assert sorted(entry.name for entry in ad.attributes) == ["A", "b"]


@pytest.mark.parametrize("name", ["GlueCEUniqueID", "CEid"])
def test_without_an_id_glue_names_the_queue(name: str) -> None:
    ad = read(f'[info = [{name} = "ce:2119/long"]]')
    assert (ad.ce, ad.queue) == ("ce:2119", "long")
    assert [entry.name for entry in ad.attributes] == [name]


@pytest.mark.parametrize(
    ("said", "site"),
    [
        ('info = [GlueSiteUniqueID = "A.B"]', "A.B"),
        ('Site = "A.B"; info = [GlueSiteUniqueID = "C.D"]', "A.B"),
        ('GlueSiteName = "A.B"', "A.B"),
        ('info = [GlueForeignKey = {"GlueClusterUniqueID=x", "GlueSiteUniqueID=A.B"}]', "A.B"),
        ("info = [GlueSiteUniqueID = 7]", None),
        ("info = []", None),
    ],
)
def test_the_site_is_the_one_that_the_ad_names(said: str, site: str | None) -> None:
    assert read(f'[id = "ce/q"; {said}]').site == site


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (
            "[info = [A = 1]]",
            r'CE ad: it has no id, which names CE and queue: id = "host:2119/queue" \(ces.ad:1\)',
        ),
        ("[A = 1]\n\n[A = 2]", r"ces.ad:1\)\nCE ad: .*ces.ad:3"),
        ("[id = 7]", r"id is 7, it has to be a text"),
        ('[\n id = "ce:2119"]', r"CE ad ce:2119: id has no slash between CE and queue.*ces.ad:2"),
        (
            '[id = "ce:2119/long queue"]',
            r"'long queue' is not a valid name of a CE or queue, allowed are letters",
        ),
        ('[id = "/long"]', r"'' is not a valid name of a CE or queue"),
        ('[id = "ce/a/b"]', r"'a/b' is not a valid name"),
        ('[id = "cé/b"]', r"'cé' is not a valid name"),
        ('[id = "ce/q"; info = 7]', r"info is 7, it has to be an ad"),
        ('[id = "ce/q"; a = 1; info = [A = 2]]', r"a is both in info and outside it"),
        ('[id = "ce/q"; update_time = "now"]', r'update_time is "now", allowed is a number of seconds'),
        ('[id = "ce/q"; expiry_time = -1]', r"expiry_time is -1, allowed is a number of seconds, 0 or more"),
        ('[id = "ce/q"]\n[id = "CE/q"]', r"CE ad CE/q: defined twice, the first time in line 1 \(ces.ad:2\)"),
    ],
)
def test_what_is_no_ce_ad_is_refused_with_its_line(text: str, said: str) -> None:
    with pytest.raises(InvalidInput, match=said):
        ce_ads.read_ads(text, "ces.ad")


def test_two_sites_may_have_a_ce_of_one_name() -> None:
    text = '[id = "ce/q"; Site = "A"] [id = "ce/q"; Site = "B"]'
    assert [ad.site for ad in ce_ads.read_ads(text, "ces.ad")] == ["A", "B"]
