from dataclasses import replace

from cs_config import validate
from cs_config.versions import store
from pilotage.service.services import utc_now
from taskqueue.db import database
from tests.support.service import Service


def put(client, body: dict, version: int | str | None):
    headers = {} if version is None else {"If-Match": str(version)}
    return client.put("/api/v1/config", json=body, headers=headers)


def test_an_operator_replaces_the_configuration_and_everybody_sees_it(service: Service):
    operator = service.operator()
    before = operator.get("/api/v1/config")
    assert before.headers["ETag"] == '"1"'
    tree = before.json()["config"]
    tree["Resources"]["Sites"]["LCG.A.org"]["CEs"]["ce1"]["MaxRAM"] = 9000
    answer = put(operator, {"config": tree, "message": "more memory"}, 1)
    assert answer.json() == {"version": 2, "warnings": [], "more_warnings": 0}
    shown = service.user().get("/api/v1/resources/queues/LCG.A.org/ce1/long").json()
    assert shown["parameters"]["MaxRAM"]["value"] == 9000
    assert shown["config_version"] == 2
    newest = operator.get("/api/v1/config/versions").json()["versions"][0]
    assert (newest["version"], newest["author"], newest["message"]) == (2, "root", "more memory")


def test_a_text_keeps_its_comments_and_its_file(service: Service, config_text: str):
    operator = service.operator()
    text = "# ours\n" + config_text
    assert put(operator, {"text": text, "source": "grid.yaml", "message": ""}, '"1"').status_code == 200
    shown = operator.get("/api/v1/config").json()
    assert (shown["text"], shown["source"], shown["version"]) == (text, "grid.yaml", 2)


def test_without_if_match_nothing_is_replaced(service: Service, config_text: str):
    answer = put(service.operator(), {"text": config_text}, None)
    assert answer.status_code == 428
    assert answer.json()["error"]["code"] == "precondition_required"


def test_a_change_that_starts_from_an_old_version_is_409(service: Service, config_text: str):
    operator = service.operator()
    assert put(operator, {"text": config_text}, 1).status_code == 200
    answer = put(operator, {"text": config_text}, 1)
    assert answer.status_code == 409
    assert answer.json()["error"]["code"] == "version_conflict"
    assert answer.json()["error"]["details"] == {"expected": 1, "current": 2, "conflicts": []}


def test_if_match_has_to_be_a_version(service: Service, config_text: str):
    operator = service.operator()
    for if_match in ("x", "-1", "1.5", "9" * 50, '"', "*"):
        assert put(operator, {"text": config_text}, if_match).status_code == 400, if_match


WRONG = [
    {"text": "Resources: ["},
    {"text": "a: 1\na: 2"},
    {"text": ""},
    {"config": {"Resources": {"Sites": 5}}},
    {"config": {"Resorces": {}}},
    {"config": {"Operations": {"Defaults": {"Limits": {"SandboxBytes": -1}}}}},
]


def test_a_wrong_configuration_is_422_with_its_problems_and_never_current(service: Service):
    operator = service.operator()
    for body in WRONG:
        answer = put(operator, body, 1)
        assert answer.status_code == 422, (body, answer.text)
        assert answer.json()["error"]["code"] == "config_error"
        assert answer.json()["error"]["details"]["problems"]
    assert operator.get("/api/v1/config").json()["version"] == 1


def test_a_body_that_names_both_or_none_is_400(service: Service):
    assert put(service.operator(), {}, 1).status_code == 400
    assert put(service.operator(), {"text": "", "config": {}}, 1).status_code == 400


def test_an_older_version_comes_back_as_the_newest(service: Service, config_text: str):
    operator = service.operator()
    put(operator, {"config": {"Resources": {}}, "message": "oops"}, 1)
    answer = operator.post("/api/v1/config/rollback", json={"version": 1})
    assert answer.json()["version"] == 3
    assert operator.get("/api/v1/config").json()["text"] == config_text
    assert operator.post("/api/v1/config/rollback", json={"version": 77}).status_code == 404
    stale = {"If-Match": "1"}
    assert operator.post("/api/v1/config/rollback", json={"version": 1}, headers=stale).status_code == 409


def test_from_a_version_of_a_later_release_one_returns_to_an_earlier_one(service: Service, config_text: str):
    operator = service.operator()
    known = validate.parse(config_text)
    later = replace(known, source=config_text + "\nLaterSection: {Later: 1}\n")
    with database.writing(service.engine) as conn:
        store.store_checked(conn, later, author="ada", message="later", expected=1, now=utc_now())
    assert operator.get("/api/v1/config").headers["ETag"] == '"1"'
    refused = put(operator, {"text": config_text}, 1)
    assert refused.status_code == 422
    assert "version 2 is in force, which this release cannot read" in refused.text
    assert (
        service.client(service.token("vo_admin", vo="cms"))
        .post("/api/v1/config/rollback", json={"version": 1})
        .is_client_error
    )
    guarded = {"text": config_text, "source": "r.yaml", "guard": ["stuck_jobs=0"]}
    refused = put(operator, guarded, 2)
    assert refused.status_code == 400
    assert "guard: the newest version cannot be read by this release" in refused.text
    answer = operator.post("/api/v1/config/rollback", json={"version": 1}, headers={"If-Match": "1"})
    assert answer.json()["version"] == 3
    assert operator.get("/api/v1/config").headers["ETag"] == '"3"'
    assert operator.get("/readyz").status_code == 200


def test_of_other_vos_nothing_is_shown(service: Service):
    shown = service.user(vo="cms").get("/api/v1/config").json()
    short = shown["config"]["Resources"]["Sites"]["LCG.A.org"]["CEs"]["ce1"]["Queues"]["short"]
    assert "VOs" not in short
    assert set(shown["config"]["Operations"]) == {"Defaults"}
    assert set(shown["config"]["Registry"]["Groups"]) == {"cms_user"}
    assert set(shown["config"]["Registry"]["VO"]) == {"cms"}
    assert shown["text"] is None
    own = service.user(vo="dune").get("/api/v1/config").json()["config"]
    assert own["Operations"]["dune"] == {"JobScheduling": {"MaxRescheduling": 7}}
    queues = own["Resources"]["Sites"]["LCG.A.org"]["CEs"]["ce1"]["Queues"]
    assert queues["short"]["VOs"] == {"dune": {"MaxRAM": 8000}}


def test_a_version_that_another_process_stored_is_seen_when_the_configuration_is_read(
    service: Service, config_text: str
):
    with database.writing(service.engine) as conn:
        store.store_text(conn, config_text, author="x", message="", source="api", expected=1, now=utc_now())
    assert service.operator().get("/api/v1/config").json()["version"] == 2
