import pytest

from cs_config import validate
from cs_config.options.registry import Group


def test_a_group_is_as_configured() -> None:
    config = validate.parse(
        "Registry: {Groups: {prod: {VO: CMS, Users: [ann], JobShare: 3,"
        " Properties: [JobSharing], AllowBackgroundTQs: true}}}"
    )
    assert config.registry.find_group("prod", "atlas").model_dump() == {
        "vo": "cms",
        "users": ("ann",),
        "job_share": 3,
        "properties": ("JobSharing",),
        "allow_background_tqs": True,
    }
    assert config.vos == {"cms"}


def test_a_group_that_nobody_configured_has_the_defaults_and_the_vo_of_its_token() -> None:
    found = validate.parse("Registry: {}").registry.find_group("cms_user", "CMS")
    assert found == Group.model_validate({"VO": "cms"})


def test_a_group_without_a_vo_has_the_one_of_its_token() -> None:
    config = validate.parse("Registry: {Groups: {any: {JobShare: 5}, empty: }}")
    assert config.registry.find_group("any", "atlas").vo == "atlas"
    assert config.registry.find_group("empty", "atlas").job_share == 1000


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("{Groups: {g: {Usrs: [a]}}}", "Registry/Groups/g/Usrs: unknown option, did you mean Users?"),
        (
            "{Groups: {g: {JobShare: much}}}",
            "Registry/Groups/g/JobShare: 'much' is not allowed here, allowed is a number",
        ),
        (
            "{Groups: {g: {VO: 'a b'}}}",
            "Registry/Groups/g/VO: 'a b' is not allowed here, allowed are letters, digits and",
        ),
        ("{Groups: {g: 5}}", "Registry/Groups/g: 5 is not allowed here, allowed is a section"),
        ("{VO: {a b: {}}}", "Registry/VO/a b: 'a b' is not a valid name of a VO"),
        (
            "{VO: {cms: {Descripton: x}}}",
            "Registry/VO/cms/Descripton: unknown option, did you mean Description?",
        ),
    ],
)
def test_wrong_entries_are_errors(text: str, said: str) -> None:
    found = [str(problem) for problem in validate.report(f"Registry: {text}", "r.yaml").errors]
    assert len(found) == 1
    assert said in found[0]


def test_the_platforms_whose_software_runs_on_a_node() -> None:
    config = validate.parse(
        "Resources: {Computing: {OSCompatibility: {el9: [el9, el8], el8: [EL8, el7], sl6: sl6}}}"
    )
    assert config.list_runnable_platforms(["EL9"]) == {"el9", "el8"}
    assert config.list_runnable_platforms(["el8"]) == {"el8", "el7"}
    assert config.list_runnable_platforms(["unheard"]) == {"unheard"}
    assert config.list_runnable_platforms([]) == frozenset()
