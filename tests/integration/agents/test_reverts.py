"""Temporary changes of the configuration: an agent restores what was there, unless somebody changed it."""

from datetime import datetime, timedelta
from typing import Any

import pytest
from sqlalchemy import Engine, select

from agents import reverts
from agents.reverts import RevertsResult
from cs_config.versions import store
from cs_config.versions.tables import config_reverts
from taskqueue.db import clock, database
from tests.support.service import Service

TREE = """
Resources:
  Sites:
    LCG.A.org:
      CEs:
        ce1:
          MaxRAM: 4000  # of the CE
          Queues: {long: {CPUTime: 100000, VOs: {dune: {MaxRAM: 5000}}}}
Registry: {VO: {cms: {}, dune: {}}, Groups: {cms_a: {VO: cms, JobShare: 100}, cms_b: {VO: cms, JobShare: 5}}}
Operations: {cms: {Limits: {JobShares: 2000}}}
"""
pytestmark = pytest.mark.config(TREE)
CE = "Resources/Sites/LCG.A.org/CEs/ce1"


def change(client: Any, values: dict[str, Any], hours: float | None = 6, **more: Any) -> dict[str, Any]:
    version = client.get("/api/v1/config").json()["version"]
    body = {"set": values, **({"revert_after": hours * 3600} if hours else {}), **more}
    answer = client.patch("/api/v1/config", json=body, headers={"If-Match": str(version)})
    assert answer.status_code == 200, answer.text
    return dict(answer.json())


def temporary(client: Any) -> list[dict[str, Any]]:
    return list(client.get("/api/v1/config/temporary").json()["values"])


def value(service: Service, path: str) -> Any:
    here: Any = service.operator().get("/api/v1/config").json()["config"]
    for name in path.split("/"):
        here = here.get(name)
    return here


def let_pass(engine: Engine, hours: float) -> RevertsResult:
    """One cycle, so many hours from now."""
    with database.reading(engine) as conn:
        config = store.load_version(conn)
        now: datetime = clock.read_time(conn, clock.utc_now()) + timedelta(hours=hours)
    result = reverts.cycle(engine, config, now=now, holder="test")
    assert result is not None
    return result


def test_a_temporary_change_reverts_when_its_time_is_over(engine: Engine, service: Service) -> None:
    operator = service.operator()
    changed = change(operator, {f"{CE}/MaxRAM": 9000, f"{CE}/Throttle": {"Policy": "level0"}}, message="rush")
    assert changed["reverts_at"]
    assert [(each["path"], each["value"], each.get("restored")) for each in temporary(operator)] == [
        (f"{CE}/MaxRAM", 9000, 4000),
        (f"{CE}/Throttle/Policy", "level0", None),
    ]
    [latest, _] = operator.get("/api/v1/config/versions").json()["versions"]
    assert latest["reverts_at"] == changed["reverts_at"]
    assert not let_pass(engine, 5.9)
    assert value(service, f"{CE}/MaxRAM") == 9000
    assert let_pass(engine, 6.1) == RevertsResult(reverted=(2,))
    assert (value(service, f"{CE}/MaxRAM"), value(service, f"{CE}/Throttle")) == (4000, None)
    assert "MaxRAM: 4000  # of the CE" in operator.get("/api/v1/config").json()["text"]
    [latest, *_] = operator.get("/api/v1/config/versions").json()["versions"]
    assert latest["message"].startswith("end of the temporary change of version 2 by ")
    assert temporary(operator) == []
    assert not let_pass(engine, 7)


def test_what_was_changed_since_stays_and_the_rest_reverts(engine: Engine, service: Service) -> None:
    operator = service.operator()
    change(operator, {f"{CE}/MaxRAM": 9000, f"{CE}/VOs/cms/OS": "el9"})
    change(operator, {f"{CE}/MaxRAM": 8000}, None)
    change(operator, {f"{CE}/MaxRAM": 9000}, None)  # the same value, but chosen to stay
    change(operator, {f"{CE}/VOs/cms/Platform": "x86"}, None)
    let_pass(engine, 7)
    assert value(service, f"{CE}/MaxRAM") == 9000
    assert value(service, f"{CE}/VOs") == {"cms": {"Platform": "x86"}}


def test_a_file_applied_since_counts_as_a_change(engine: Engine, service: Service) -> None:
    change(service.operator(), {f"{CE}/MaxRAM": 9000})
    service.configure(TREE.replace("4000", "7000"))
    assert temporary(service.operator()) == []
    assert not let_pass(engine, 7)
    assert value(service, f"{CE}/MaxRAM") == 7000


def test_a_temporary_value_within_another_gives_way_to_it(engine: Engine, service: Service) -> None:
    operator = service.operator()
    outer = change(operator, {f"{CE}/MaxRAM": 9000, f"{CE}/Throttle": {"Policy": "level0"}}, 6)
    change(service.as_role("operator", user="bob"), {f"{CE}/MaxRAM": 8000, f"{CE}/SI00": 5}, 2)
    inner, around = (each for each in temporary(operator) if each["path"] == f"{CE}/MaxRAM")
    assert (inner["value"], inner["restored"], inner["author"]) == (8000, 9000, "bob")
    assert (around["value"], around["restored"], around["reverts_at"]) == (9000, 4000, outer["reverts_at"])
    versions = operator.get("/api/v1/config/versions").json()["versions"]
    assert versions[1]["reverts_at"] == outer["reverts_at"]
    assert let_pass(engine, 3) == RevertsResult(reverted=(3,))
    assert (value(service, f"{CE}/MaxRAM"), value(service, f"{CE}/SI00")) == (9000, None)
    shown = {each["path"]: (each["value"], each.get("restored")) for each in temporary(operator)}
    assert shown == {f"{CE}/MaxRAM": (9000, 4000), f"{CE}/Throttle/Policy": ("level0", None)}
    assert not let_pass(engine, 5)
    assert let_pass(engine, 7) == RevertsResult(reverted=(2,))
    assert (value(service, f"{CE}/MaxRAM"), value(service, f"{CE}/Throttle")) == (4000, None)
    assert temporary(operator) == []


def test_one_that_lasts_longer_than_another_ends_with_the_value_before_both(
    engine: Engine, service: Service
) -> None:
    operator = service.operator()
    change(operator, {f"{CE}/MaxRAM": 9000}, 2)
    change(operator, {f"{CE}/MaxRAM": 8000}, 6)
    assert not let_pass(engine, 3)
    assert let_pass(engine, 7)
    assert value(service, f"{CE}/MaxRAM") == 4000


@pytest.mark.parametrize(
    ("hours", "passing"),
    [
        ((6, 4, 2), {3: 2, 5: 1, 7: 0}),
        ((6, 2, 4), {3: 3, 5: 1, 7: 0}),  # the second ends within the third
        ((4, 2, 6), {3: 3, 5: 3, 7: 0}),
        ((6, 4, 2), {5: 1, 7: 0}),  # while no agent ran
        ((6, 4, 2), {7: 0}),
    ],
)
def test_of_three_within_one_another_each_has_its_own_time(
    engine: Engine, service: Service, hours: tuple[int, ...], passing: dict[int, int]
) -> None:
    operator = service.operator()
    for number, each in enumerate(hours, start=1):
        change(operator, {f"{CE}/MaxRAM": 4000 + number}, each)
    for moment, number in passing.items():
        let_pass(engine, moment)
        assert value(service, f"{CE}/MaxRAM") == 4000 + number
    assert temporary(operator) == []


def test_a_return_to_a_temporary_value_leaves_it_its_own_time(engine: Engine, service: Service) -> None:
    operator = service.operator()
    first = change(operator, {f"{CE}/MaxRAM": 9000}, 6)
    change(operator, {f"{CE}/MaxRAM": 8000}, 2)
    assert change(operator, {f"{CE}/MaxRAM": 9000}, 3)["reverts_at"] == first["reverts_at"]
    assert not let_pass(engine, 4)
    assert let_pass(engine, 7)
    assert value(service, f"{CE}/MaxRAM") == 4000


def test_one_that_is_moved_beyond_another_or_set_for_good_ends_it(engine: Engine, service: Service) -> None:
    operator = service.operator()
    for name in ("MaxRAM", "SI00"):
        change(operator, {f"{CE}/{name}": 9000}, 6)
        change(operator, {f"{CE}/{name}": 8000}, 2)
    change(operator, {f"{CE}/MaxRAM": 8000}, 12)
    change(operator, {f"{CE}/SI00": 8000}, None)
    assert not let_pass(engine, 7)
    assert let_pass(engine, 13)
    assert (value(service, f"{CE}/MaxRAM"), value(service, f"{CE}/SI00")) == (4000, 8000)


def test_what_one_that_is_moved_beyond_another_restores_is_told(engine: Engine, service: Service) -> None:
    operator = service.operator()
    for value_, hours in ((9000, 6), (8000, 2), (8000, 12)):
        change(operator, {f"{CE}/MaxRAM": value_}, hours)
    assert [each["restored"] for each in temporary(operator)] == [4000]
    versions = operator.get("/api/v1/config/versions").json()["versions"]
    assert [bool(each["reverts_at"]) for each in versions] == [True, False, False]
    change(operator, {f"{CE}/MaxRAM": 4000}, 1)
    change(operator, {f"{CE}/MaxRAM": 4000}, 24)
    assert temporary(operator) == [], "4000 was there before all of them"
    assert not let_pass(engine, 25)


def test_a_return_to_a_version_of_a_temporary_value_leaves_it_its_time(
    engine: Engine, service: Service
) -> None:
    operator = service.operator()
    first = change(operator, {f"{CE}/MaxRAM": 9000}, 6)
    change(operator, {f"{CE}/MaxRAM": 8000, f"{CE}/SI00": 5}, 2)
    answer = operator.post("/api/v1/config/rollback", json={"version": 2}).json()
    assert answer["reverts_at"] == first["reverts_at"]
    assert [(each["value"], each["restored"]) for each in temporary(operator)] == [(9000, 4000)]
    assert not let_pass(engine, 3)
    assert let_pass(engine, 7) == RevertsResult(reverted=(2,))
    assert value(service, f"{CE}/MaxRAM") == 4000


USER = f"{CE}/RunningLimit/JobType/User"


@pytest.mark.parametrize(
    ("before", "outer", "inner"),
    [
        (None, {USER: {"cores": 7}}, {USER: 3}),
        (None, {USER: {"cores": 7, "count": 5}}, {USER: 3}),
        ({USER: 3}, {USER: {"cores": 7, "count": 5}}, {f"{USER}/cores": 9}),
        ({USER: {"cores": 7, "count": 5}}, {USER: 4}, {USER: {"cores": 3}}),
    ],
)
def test_a_section_and_a_value_within_one_another_end_both(
    engine: Engine,
    service: Service,
    before: dict[str, Any] | None,
    outer: dict[str, Any],
    inner: dict[str, Any],
) -> None:
    operator = service.operator()
    if before:
        change(operator, before, None)
    first = value(service, CE)
    change(operator, outer, 6)
    second = value(service, CE)
    change(operator, inner, 2)
    assert let_pass(engine, 3)
    assert value(service, CE) == second
    assert let_pass(engine, 7)
    assert value(service, CE) == first
    assert temporary(operator) == []


def test_a_removed_section_that_is_a_value_meanwhile_comes_back(engine: Engine, service: Service) -> None:
    operator = service.operator()
    change(operator, {USER: {"cores": 7, "count": 5}}, None)
    version = operator.get("/api/v1/config").json()["version"]
    body = {"remove": [f"{CE}/RunningLimit"], "revert_after": 6 * 3600}
    assert operator.patch("/api/v1/config", json=body, headers={"If-Match": str(version)}).status_code == 200
    change(operator, {USER: 3}, 2)
    let_pass(engine, 3)
    assert "RunningLimit" not in value(service, CE)
    let_pass(engine, 7)
    assert value(service, USER) == {"cores": 7, "count": 5}


def test_what_is_as_it_was_before_all_ends_after_a_time_without_agents(
    engine: Engine, service: Service
) -> None:
    operator = service.operator()
    change(operator, {USER: 24}, 4)
    version = operator.get("/api/v1/config").json()["version"]
    body = {"remove": [USER], "revert_after": 3 * 3600}
    assert operator.patch("/api/v1/config", json=body, headers={"If-Match": str(version)}).status_code == 200
    let_pass(engine, 5)
    assert temporary(operator) == []


def test_what_was_removed_comes_back_into_a_section_that_is_made_meanwhile(
    engine: Engine, service: Service
) -> None:
    operator = service.operator()
    change(operator, {USER: {"cores": 7}}, None)
    version = operator.get("/api/v1/config").json()["version"]
    body = {"remove": [f"{CE}/RunningLimit"], "revert_after": 6 * 3600}
    assert operator.patch("/api/v1/config", json=body, headers={"If-Match": str(version)}).status_code == 200
    change(operator, {f"{CE}/RunningLimit": {"JobType": {"Test": 3}}}, 2)
    let_pass(engine, 3)
    assert "RunningLimit" not in value(service, CE)
    let_pass(engine, 7)
    assert value(service, f"{CE}/RunningLimit") == {"JobType": {"User": {"cores": 7}}}


def test_each_restores_with_its_own_rights_also_after_a_time_without_agents(
    engine: Engine, service: Service
) -> None:
    cms, limit = service.as_role("vo_admin", vo="cms", user="eve"), f"{CE}/VOs/cms/MaxTotalJobs"
    change(service.operator(), {limit: 50}, None)
    change(service.operator(), {limit: 5}, 3)
    change(cms, {limit: 4}, 1)
    assert let_pass(engine, 4).reverted, "by the operator, whose value it gave way to"
    assert value(service, limit) == 50


def test_a_vo_keeps_nothing_beyond_the_time_that_others_gave_it(engine: Engine, service: Service) -> None:
    cms, limit = service.as_role("vo_admin", vo="cms", user="eve"), f"{CE}/VOs/cms/MaxTotalJobs"
    change(service.operator(), {limit: 5}, None)
    change(service.operator(), {limit: 50}, 3)

    def refuse(number: int, hours: float | None) -> None:
        version = cms.get("/api/v1/config").json()["version"]
        body = {"set": {limit: number}, **({"revert_after": hours * 3600} if hours else {})}
        answer = cms.patch("/api/v1/config", json=body, headers={"If-Match": str(version)})
        assert answer.status_code == 403
        assert "a VO sets no more than 5" in answer.text
        assert "for a time only" in answer.text

    refuse(49, None)
    refuse(49, 100)
    change(cms, {limit: 40}, 2)
    refuse(50, None)
    assert let_pass(engine, 2.5).reverted
    assert value(service, limit) == 50
    assert let_pass(engine, 4).reverted
    assert value(service, limit) == 5
    change(service.operator(), {limit: 50}, 3)
    change(cms, {limit: 4}, None)
    assert not let_pass(engine, 8)
    assert value(service, limit) == 4


def test_the_row_alone_restores_what_was_before_all(engine: Engine, service: Service) -> None:
    """A process of 1.0.0 beside reads no others: it would leave 9000 for good."""
    change(service.operator(), {f"{CE}/MaxRAM": 9000}, 6)
    change(service.as_role("operator", user="bob"), {f"{CE}/MaxRAM": 8000}, 2)
    with database.reading(engine) as conn:
        [row] = conn.execute(select(config_reverts)).mappings()
    assert (row["before"], row["after"], row["author"]) == ("4000", "8000", "bob")
    assert '"lifts": false' in row["rights"]


def test_the_same_value_again_moves_or_cancels_the_revert(engine: Engine, service: Service) -> None:
    operator = service.operator()
    change(operator, {f"{CE}/MaxRAM": 9000}, 6)
    again = change(operator, {f"{CE}/MaxRAM": 9000}, 12)
    assert (again["changes"], again["version"], bool(again["reverts_at"])) == ([], 2, True)
    assert not let_pass(engine, 7)
    assert "reverts_at" not in change(operator, {f"{CE}/MaxRAM": 9000}, None)
    assert not let_pass(engine, 13)
    assert value(service, f"{CE}/MaxRAM") == 9000


def test_the_same_value_of_a_vo_admin_moves_or_ends_no_temporary_value_of_an_operator(
    engine: Engine, service: Service
) -> None:
    path, operator = f"{CE}/VOs/cms/MaxRAM", service.operator()
    cms = service.client(service.token("vo_admin", vo="cms"))
    first = change(operator, {path: 9000}, 6)
    for hours in (None, 48):
        again = change(cms, {path: 9000}, hours)
        assert (again["changes"], again["reverts_at"]) == ([], first["reverts_at"])
    # Beside a value that changes, too.
    mixed = change(cms, {path: 9000, f"{CE}/VOs/cms/SI00": 2}, None)
    assert mixed["reverts_at"] == first["reverts_at"]
    assert let_pass(engine, 7)
    assert value(service, f"{CE}/VOs/cms") == {"SI00": 2}
    change(cms, {path: 9000}, 6)
    other = service.client(service.token("vo_admin", vo="cms", user="bob"))
    assert "reverts_at" not in change(other, {path: 9000}, None)
    assert temporary(operator) == []


def test_a_section_again_or_with_other_values_moves_or_cancels_the_reverts_in_it(
    engine: Engine, service: Service
) -> None:
    operator = service.operator()
    section = {"Policy": "level0", "MaxSubmittingJobs": 5}
    change(operator, {f"{CE}/Throttle": section, f"{CE}/MaxRAM": 9000, f"{CE}/SI00": 1}, 1)
    assert change(operator, {f"{CE}/Throttle": section}, 12)["reverts_at"]
    change(operator, {f"{CE}/MaxRAM": 9000, f"{CE}/SI00": 2}, 12)
    assert not let_pass(engine, 2)
    change(operator, {f"{CE}/Throttle": section}, None)
    change(operator, {f"{CE}/MaxRAM": 9000, f"{CE}/SI00": 3}, None)
    assert temporary(operator) == []
    change(operator, {f"{CE}/MaxRAM": 7000}, 1)
    assert "reverts_at" not in change(operator, {f"{CE}/MaxRAM": 9000}, None)
    assert value(service, f"{CE}/Throttle") == section


def test_a_return_to_the_value_before_is_not_temporary(service: Service) -> None:
    operator = service.operator()
    change(operator, {f"{CE}/MaxRAM": 7000}, 1)
    assert "reverts_at" not in change(operator, {f"{CE}/MaxRAM": 4000}, 1)
    assert temporary(operator) == []


def test_a_revert_needs_the_rights_that_its_author_had(engine: Engine, service: Service) -> None:
    """Else a VO would lower a share for an hour, give it to another group, and then have both."""
    cms = service.as_role("vo_admin", vo="cms", user="eve")
    change(cms, {"Registry/Groups/cms_a/JobShare": 0}, 1)
    change(cms, {"Registry/Groups/cms_b/JobShare": 1000}, None)
    assert let_pass(engine, 2) == RevertsResult(failed=(2,))
    assert value(service, "Registry/Groups/cms_a/JobShare") == 0
    [left] = temporary(service.operator())
    assert "JobShare of the groups of cms would be" in left["problem"]
    assert "operators" in temporary(cms)[0]["problem"]
    assert not let_pass(engine, 3)  # not again before the configuration changes
    change(cms, {"Registry/Groups/cms_b/JobShare": 5}, None)
    assert let_pass(engine, 4) == RevertsResult(reverted=(2,))
    assert value(service, "Registry/Groups/cms_a/JobShare") == 100


def test_a_vo_lowers_a_limit_of_its_own_for_a_time(engine: Engine, service: Service) -> None:
    cms, limit = service.as_role("vo_admin", vo="cms", user="eve"), f"{CE}/VOs/cms/MaxTotalJobs"
    change(cms, {limit: 5}, 1)
    assert let_pass(engine, 2) == RevertsResult(reverted=(2,))
    assert "VOs" not in value(service, CE)
    change(service.operator(), {limit: 5}, 3)
    change(cms, {limit: 4}, 1)
    assert let_pass(engine, 2).reverted
    assert value(service, limit) == 5, "the operator's, which ends at its own time"
    change(cms, {limit: 4}, 100)
    assert let_pass(engine, 101).failed, "what was before is the operator's to restore"
    assert value(service, limit) == 4


def test_values_that_cannot_be_restored_keep_no_others_back(engine: Engine, service: Service) -> None:
    cms = service.as_role("vo_admin", vo="cms", user="eve")
    own = f"{CE}/VOs/cms"
    change(cms, {"Registry/Groups/cms_a/JobShare": 0, f"{own}/MaxRAM": 100, f"{own}/SI00": 7}, 1)
    change(cms, {"Registry/Groups/cms_b/JobShare": 1000}, None)
    change(cms, {f"{own}/SI00": 7}, 3)
    assert let_pass(engine, 2) == RevertsResult(failed=(2,))
    assert value(service, own) == {"SI00": 7}
    problems = {each["path"]: bool(each["problem"]) for each in temporary(service.operator())}
    assert problems == {"Registry/Groups/cms_a/JobShare": True, f"{own}/SI00": False}
    let_pass(engine, 4)
    assert "VOs" not in value(service, CE)


@pytest.mark.parametrize("again", [6000, 9000], ids=["made anew", "moved"])
def test_a_revert_that_was_made_or_moved_during_the_cycle_stays(
    engine: Engine, service: Service, monkeypatch: pytest.MonkeyPatch, again: int
) -> None:
    operator = service.operator()
    change(operator, {f"{CE}/MaxRAM": 9000}, 1)
    listed = reverts.reverts.list_reverts

    def list_and_change(conn: Any) -> Any:
        found = listed(conn)
        monkeypatch.setattr(reverts.reverts, "list_reverts", listed)
        change(operator, {f"{CE}/MaxRAM": again}, 24)
        return found

    monkeypatch.setattr(reverts.reverts, "list_reverts", list_and_change)
    assert not let_pass(engine, 2)
    assert value(service, f"{CE}/MaxRAM") == again
    let_pass(engine, 25)
    assert value(service, f"{CE}/MaxRAM") == 4000


def test_values_of_other_vos_are_not_listed(service: Service) -> None:
    change(service.operator(), {f"{CE}/VOs/dune/OS": "el9"})
    assert temporary(service.as_role("vo_admin", vo="cms", user="eve")) == []
    assert len(temporary(service.as_role("vo_admin", vo="dune", user="zoe"))) == 1


def test_values_of_other_vos_are_not_listed_where_an_empty_section_was_replaced(
    engine: Engine, service: Service
) -> None:
    service.configure(TREE.replace("MaxRAM: 4000", "VOs:\n          MaxRAM: 4000"))
    operator, cms = service.operator(), service.as_role("vo_admin", vo="cms", user="eve")
    change(operator, {f"{CE}/VOs": {"dune": {"MaxRAM": 7}}})
    assert [each["path"] for each in temporary(operator)] == [f"{CE}/VOs/dune/MaxRAM"]
    assert temporary(cms) == []
    change(operator, {f"{CE}/VOs/cms/MaxRAM": 8}, None)
    assert let_pass(engine, 7)
    assert value(service, f"{CE}/VOs") == {"cms": {"MaxRAM": 8}}


def test_one_author_has_a_bounded_number_of_temporary_values(service: Service) -> None:
    operator = service.operator()
    values = {f"{CE}/Own{n}": n for n in range(1001)}
    answer = operator.patch(
        "/api/v1/config", json={"set": values, "revert_after": 60}, headers={"If-Match": "1"}
    )
    assert answer.status_code == 400
    assert "this makes 1001 more so; allowed are 1000" in answer.text
    assert operator.get("/api/v1/config").json()["version"] == 1


def test_values_within_one_another_are_bounded_and_count_for_their_authors(service: Service) -> None:
    operator = service.operator()
    for number in range(10):
        change(operator, {f"{CE}/MaxRAM": 5000 + number}, 20 - number)
    version = operator.get("/api/v1/config").json()["version"]

    def refuse(values: dict[str, Any]) -> str:
        answer = operator.patch(
            "/api/v1/config", json={"set": values, "revert_after": 60}, headers={"If-Match": str(version)}
        )
        assert answer.status_code == 400
        return str(answer.text)

    assert "10 temporary values within one another, as many as allowed" in refuse({f"{CE}/MaxRAM": 1})
    assert "10 of your values are temporary now" in refuse({f"{CE}/Own{n}": n for n in range(991)})
    assert operator.get("/api/v1/config").json()["version"] == version
