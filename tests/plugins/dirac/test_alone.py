"""Services of the door for installations without DIRAC's own: sandboxes, pilots, the configuration."""

import hashlib
import json
import os
import zlib
from base64 import b64decode, b64encode
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import Engine, select

from cs_config.options import bounds
from taskqueue.schema.tables import attempts, descriptions
from tests.plugins.dirac.test_app import (
    CONFIG,
    JDL,
    MANAGER,
    MATCHER,
    MONITORING,
    UPDATE,
    Ask,
    ask,
    asking,
    chains,
    opened_door,
    run_job,
    value,
)
from tests.support import databases
from tests.support.factories import stored_rows

__all__ = ["ask", "chains"]

SANDBOXES, PILOTS, SERVER = (
    "/WorkloadManagement/SandboxStore",
    "/WorkloadManagement/PilotManager",
    ("/Configuration/Server"),
)
RESOURCE = {"Site": "LCG.A.org", "GridCE": "ce1", "CEQueue": "long", "CPUTime": 5000}


def send(ask: Ask, peer: str, data: bytes, assigned: dict[str, str] | None = None, **more: Any) -> Any:
    """What `SandboxStoreClient.uploadFilesAsSandbox` sends."""
    name = f"{hashlib.md5(data, usedforsecurity=False).hexdigest()}.tar.bz2"
    content = {"__dCls": "b64", "obj": b64encode(data).decode()}
    return ask(peer, SANDBOXES, "streamFromClient", [name, assigned or {}], "", len(data), content, **more)


def fetch(ask: Ask, peer: str, url: str) -> Any:
    """What `SandboxStoreClient.downloadSandbox` sends."""
    path = url.partition("|")[2]
    return ask(peer, SANDBOXES, "streamToClient", f"https://door:8443{SANDBOXES}{path}", "")


def submit(ask: Ask, url: str) -> Any:
    return ask(
        "ada", MANAGER, "submitJob", f'Executable = "a.sh"; CPUTime = 1000; InputSandbox = {{"{url}"}}'
    )


def test_an_input_sandbox_is_the_jobs_and_reaches_its_pilot(ask: Ask, engine: Engine):
    url = value(send(ask, "ada", b"an archive"))
    assert url.startswith("SB:SandboxSE|/SandBox/lhcb/ada/lhcb_user/")
    job_id = value(submit(ask, url))
    stored = databases.scalar(engine, select(descriptions.c.sandbox))
    assert stored == hashlib.sha256(b"an archive").hexdigest()
    assert value(ask("ada", SANDBOXES, "getSandboxesAssignedToEntity", f"Job:{job_id}")) == {"Input": [url]}

    got = value(ask("pia", MATCHER, "requestJob", RESOURCE))
    assert f"InputSandbox = {{{url}}};" in got["JDL"]
    answer = fetch(ask, "ada", url)
    assert (answer.status_code, answer.content) == (200, b"an archive")
    for stranger in ("pia", "bea"):  # neither a pilot without the owner's proxy, nor another VO
        assert fetch(ask, stranger, url).status_code == 400
    assert fetch(ask, "bea", url.replace("lhcb", "dune").replace("/ada/", "/bea/")).status_code == 400
    assert fetch(ask, "ada", url.replace(stored, "0" * 64)).status_code == 400
    assert fetch(ask, "ada", "SB:SandboxSE|/SandBox/../../etc/passwd").status_code == 400
    assert not fetch(ask, "ada", "SB:SandboxSE|" + "x" * 10_000).json()["OK"]


def test_an_output_is_that_of_the_attempt_and_a_ghosts_is_dropped(ask: Ask, engine: Engine):
    job_id = run_job(ask)
    entity = f"Job:{job_id}"
    assert not send(ask, "bea", b"forged", {entity: "Output"}).json()["OK"]
    value(ask("ada", UPDATE, "setJobStatus", job_id, "Running", "", "JobWrapper", address="10.0.0.9"))
    first = value(send(ask, "ada", b"first", {entity: "Output"}, address="10.0.0.9"))
    url = value(send(ask, "ada", b"the output", {entity: "Output"}, address="10.0.0.9"))
    assert value(ask("ada", SANDBOXES, "getSandboxesAssignedToEntity", entity)) == {"Output": [url]}
    assert fetch(ask, "ada", url).content == b"the output"
    assert fetch(ask, "ada", first).status_code == 400  # replaced

    value(ask("ada", UPDATE, "setJobStatus", job_id, "Failed", "", "JobWrapper", address="10.0.0.9"))
    value(send(ask, "ada", b"after the end", {entity: "Output"}, address="10.0.0.9"))
    assert value(ask("ada", SANDBOXES, "getSandboxesAssignedToEntity", entity)) == {"Output": [url]}
    value(ask("ada", MANAGER, "rescheduleJob", [job_id]))
    value(send(ask, "ada", b"of the ghost", {entity: "Output"}, address="10.0.0.9"))
    outputs = databases.scalars(engine, select(attempts.c.output))
    assert outputs == [hashlib.sha256(b"the output").hexdigest()]


def test_an_output_is_read_by_who_controls_its_job_whatever_owner_the_url_names(ask: Ask):
    owner, stranger, node = "ada alone", "bob alone", "10.0.0.9"
    job_id = value(ask(owner, MANAGER, "submitJob", JDL))
    value(ask("pia", MATCHER, "requestJob", RESOURCE))
    value(ask(owner, UPDATE, "setJobStatus", job_id, "Running", "", "JobWrapper", address=node))
    url = value(send(ask, owner, b"the output", {f"Job:{job_id}": "Output"}, address=node))
    assert fetch(ask, owner, url).content == b"the output"
    forged = url.replace("/ada/", "/bob/")
    assert forged != url
    assert fetch(ask, stranger, forged).status_code == 400
    submitted = ask(
        stranger, MANAGER, "submitJob", f'Executable = "a.sh"; CPUTime = 1000; InputSandbox = {{"{forged}"}}'
    )
    assert "is not stored" in submitted.json()["Message"]


@pytest.mark.parametrize("ended_by", ["the Watchdog", "a kill"])
def test_an_output_after_the_end_that_its_jobwrapper_reported_is_the_jobs(ask: Ask, ended_by: str):
    job_id = run_job(ask)
    entity, node = f"Job:{job_id}", "10.0.0.9"
    value(ask("ada", UPDATE, "setJobStatus", job_id, "Running", "", "JobWrapper", address=node))
    if ended_by == "a kill":
        value(ask("ada", MANAGER, "killJob", [job_id]))
    value(ask("ada", UPDATE, "setJobStatus", job_id, "Failed", "CPU limit", "JobWrapper", address=node))
    value(send(ask, "ada", b"of another", {entity: "Output"}, address="10.0.0.8"))
    assert value(ask("ada", SANDBOXES, "getSandboxesAssignedToEntity", entity)) == {}
    url = value(send(ask, "ada", b"the output", {entity: "Output"}, address=node))
    for again in (b"the output", b"a later one"):
        value(send(ask, "ada", again, {entity: "Output"}, address=node))
        assert value(ask("ada", SANDBOXES, "getSandboxesAssignedToEntity", entity)) == {"Output": [url]}
    assert fetch(ask, "ada", url).content == b"the output"


@pytest.mark.parametrize("word", ["Failed", "Rescheduled"])
def test_an_output_after_its_job_was_rescheduled_is_dropped(ask: Ask, word: str, engine: Engine):
    job_id = run_job(ask)
    entity, node = f"Job:{job_id}", "10.0.0.9"
    value(ask("ada", UPDATE, "setJobStatus", job_id, "Running", "", "JobWrapper", address=node))
    value(ask("ada", UPDATE, "setJobStatus", job_id, word, "", "JobWrapper", address=node))
    value(ask("ada", MANAGER, "rescheduleJob", [job_id]))
    value(send(ask, "ada", b"of the ghost", {entity: "Output"}, address=node))
    value(ask("pia", MATCHER, "requestJob", RESOURCE, address="10.0.0.2"))
    value(send(ask, "ada", b"of the ghost", {entity: "Output"}, address=node))
    assert databases.scalars(engine, select(attempts.c.output)) == [None, None]


def test_sandboxes_that_cannot_be_stored_are_refused(ask: Ask):
    [job_id] = [value(ask("ada", MANAGER, "submitJob", JDL))]
    wrong = {"__dCls": "b64", "obj": b64encode(b"other").decode()}
    for arguments, message in (
        ([["0" * 32 + ".tar.bz2", {}], "", 5, wrong], "MD5"),
        ([["no archive", {}], "", 5, wrong], "is not a valid name"),
        ([[".tar" * 1_000 + "-", {}], "", 5, wrong], "at most 255 characters"),
        ([["a.tar.bz2", {"Pilot:5": "Output"}], "", 5, wrong], "is not a job"),
        ([["a.tar.bz2", {f"Job:{job_id}": "Input"}], "", 5, wrong], "submitted later"),
        ([["a.tar.bz2", {f"Job:{job_id}": "Output", "Job:99": "Output"}], "", 5, wrong], "output of one"),
        ([["a.tar.bz2", {"Job:99": "Output"}], "", 5, wrong], "does not exist"),
        ([["a.tar.bz2", {}], "", 0, {"__dCls": "b64", "obj": ""}], "empty"),
    ):
        answer = ask("ada", SANDBOXES, "streamFromClient", *arguments)
        assert (answer.status_code, answer.json()["OK"]) == (200, False), arguments
        assert message in answer.json()["Message"]
    assert not send(ask, "ada", b"x" * (bounds.DIRAC_SANDBOX + 1)).json()["OK"]
    assert not send(ask, "pia", b"of no user").json()["OK"]
    assert not send(ask, "rms", b"of a host").json()["OK"]
    one, two = (value(send(ask, "ada", content)) for content in (b"one", b"two"))
    assert "names 2 sandboxes" in submit(ask, f'{one}", "{two}').json()["Message"]
    for foreign in (one.replace("/ada/lhcb_user/", "/zoe/lhcb_admin/"), one.replace("/lhcb/", "/dune/")):
        assert "may not read" in submit(ask, foreign).json()["Message"]
    value(submit(ask, one.replace("/ada/", "/zoe/")))  # of her group, whose sandboxes she reads
    gone = one.replace(one.rpartition("/")[2], f"{'0' * 64}.tar.bz2")
    assert "is not stored" in submit(ask, gone).json()["Message"]
    value(submit(ask, "SB:SandboxSE|/SandBox/a/ada.lhcb_user/abc/def/abcdef.tar.bz2"))  # of DIRAC's own store


def test_clients_find_the_store_active(ask: Ask):
    columns = ["Name", "ElementType", "StatusType", "Status", "VO"]
    path = "/ResourceStatus/ResourceStatus"
    rows = value(ask("ada", path, "select", "ResourceStatus", {"Meta": {"columns": columns}, "VO": "all"}))
    assert ["SandboxSE", "StorageElement", "ReadAccess", "Active", "all"] in rows
    assert ["ce1", "ComputingElement", "all", "Active", "all"] in rows
    assert value(ask("ada", path, "select", "NodeStatus", {"Meta": {"columns": columns}})) == []
    for meta in (None, {}, {"columns": 5}, {"columns": ["Name"] * 100}):
        assert not ask("ada", path, "select", "ResourceStatus", {"Meta": meta}).json()["OK"]


def test_a_pilot_is_registered_and_has_its_jobs(ask: Ask):
    reference = "https://ce1/arex/1"
    unknown = ask("pia", PILOTS, "getPilotInfo", reference).json()
    assert (unknown["OK"], unknown["Errno"]) == (False, 1550)
    for _ in range(2):
        value(ask("pia", PILOTS, "addPilotReferences", [reference], "lhcb", "DIRAC", {reference: "abc"}))
    assert not ask("pia", PILOTS, "addPilotReferences", [reference], "dune").json()["OK"]
    assert value(ask("pia", PILOTS, "getPilotInfo", [reference]))[reference]["Status"] == "Submitted"
    assert not ask("bea", PILOTS, "getPilotInfo", reference).json()["OK"]

    job_id = value(ask("ada", MANAGER, "submitJob", JDL))
    value(ask("pia", MATCHER, "requestJob", {**RESOURCE, "PilotReference": reference}))
    pilot = value(ask("pia", PILOTS, "getPilotInfo", reference))[reference]
    assert (pilot["Status"], pilot["GridSite"], pilot["Jobs"]) == ("Running", "LCG.A.org", [job_id])
    assert list(value(ask("ada", PILOTS, "getPilots", job_id))) == [reference]

    done = (reference, "Done", "ce1", "Report from JobAgent", "LCG.A.org", "long")
    value(ask("bea", PILOTS, "setPilotStatus", *done))  # of no effect: it is none of hers
    assert value(ask("pia", PILOTS, "getPilotInfo", reference))[reference]["Status"] == "Running"
    value(ask("pia", PILOTS, "setPilotStatus", *done))
    pilot = value(ask("pia", PILOTS, "getPilotInfo", reference))[reference]
    assert (pilot["Status"], pilot["StatusReason"]) == ("Done", "Report from JobAgent")
    value(ask("pia", PILOTS, "setPilotStatus", "https://ce1/unknown", "Done"))
    assert "allowed" in ask("pia", PILOTS, "setPilotStatus", reference, "Lazy").json()["Message"]


def test_only_who_sees_a_pilot_sees_its_other_jobs(ask: Ask):
    reference = "https://ce1/arex/2"
    value(ask("pia", PILOTS, "addPilotReferences", [reference], "lhcb"))
    jobs = []
    for _ in range(2):
        job_id = value(ask("ada", MANAGER, "submitJob", JDL))
        value(ask("pia", MATCHER, "requestJob", {**RESOURCE, "PilotReference": reference}))
        value(ask("ada", UPDATE, "setJobStatus", job_id, "Running", "", "JobWrapper"))
        value(ask("ada", UPDATE, "setJobStatus", job_id, "Done", "", "JobWrapper"))
        jobs.append(job_id)
    assert value(ask("pia", PILOTS, "getPilotInfo", reference))[reference]["Jobs"] == jobs
    assert value(ask("ada", PILOTS, "getPilots", jobs[0]))[reference]["Jobs"] == jobs[:1]


def test_a_banned_site_is_banned_for_site_directors_and_the_portal(ask: Ask, engine: Engine):
    def read_site() -> list[str]:
        rows = value(ask("ada", "/ResourceStatus/ResourceStatus", "select", "SiteStatus", conditions))
        return [status for name, status in rows if name == "LCG.A.org"]

    conditions = {"Meta": {"columns": ["Name", "Status"]}, "VO": "all"}
    assert read_site() == ["Active"]
    run_job(ask)
    stored_rows.ban(engine, datetime.now(UTC), "LCG.A.org", reason="power cut")
    assert read_site() == ["Banned"]
    page = value(ask("ada", "/Monitoring/WebApp", "getSiteSummaryWeb", {}, [], 0, 10))
    [row] = [dict(zip(page["ParameterNames"], each, strict=True)) for each in page["Records"]]
    assert row["MaskStatus"] == "Banned"


def test_a_site_director_selects_its_pilots_by_queue_and_status(ask: Ask, monkeypatch: pytest.MonkeyPatch):
    here = {"DestinationSite": "ce1", "Queue": "long", "GridType": "Local", "GridSite": "LCG.A.org"}
    active = {**here, "Status": ["Submitted", "Waiting", "Scheduled", "Running", "Unknown"], "VO": "lhcb"}
    references = ["ssh://ce1/1", "ssh://ce1/2", "ssh://ce1/3"]
    value(ask("pia", PILOTS, "addPilotReferences", references, "lhcb", "Local", {}))
    assert value(ask("pia", PILOTS, "selectPilots", active)) == []
    for each in references:
        value(ask("pia", PILOTS, "setPilotStatus", each, "Submitted", "ce1", "sent", "LCG.A.org", "long"))
    value(ask("pia", PILOTS, "setPilotStatus", references[0], "Unknown", "", "Updated by SiteDirector"))
    value(ask("pia", PILOTS, "setPilotStatus", references[1], "Done", "", "Updated by SiteDirector"))
    assert sorted(value(ask("pia", PILOTS, "selectPilots", active))) == [references[0], references[2]]
    assert value(ask("pia", PILOTS, "countPilots", active)) == 2
    ended = {**here, "Status": ["Done", "Aborted", "Deleted", "Failed"]}
    assert value(ask("pia", PILOTS, "selectPilots", ended)) == [references[1]]
    assert value(ask("pia", PILOTS, "selectPilots", {**active, "Queue": "short"})) == []
    assert value(ask("pia", PILOTS, "selectPilots", {"VO": "dune"})) == []
    for other in ("ada", "bea"):
        assert value(ask(other, PILOTS, "selectPilots", {})) == []
        assert value(ask(other, PILOTS, "countPilots", {})) == 0
    for wrong in ({"AccountingSent": "False"}, {"Queue": ["long"]}, {"GridSite": "x" * 200}):
        assert "is no condition" in ask("pia", PILOTS, "selectPilots", wrong).json()["Message"]
    assert len(value(ask("pia", PILOTS, "getPilotInfo", references))) == 3
    monkeypatch.setattr(bounds, "DIRAC_PILOTS_READ", 1)
    assert value(ask("pia", PILOTS, "selectPilots", active)) == [references[2]]  # changed before the other


def test_a_pilot_takes_jobs_at_the_queue_that_it_was_submitted_to(ask: Ask):
    reference = "ssh://ce1/1"
    value(ask("pia", PILOTS, "addPilotReferences", [reference], "lhcb", "Local", {}))
    for queue in ("nowhere", "long"):  # of no effect if the configuration does not have it
        told = (reference, "Submitted", "ce1", "Successfully submitted", "LCG.A.org", queue)
        value(ask("pia", PILOTS, "setPilotStatus", *told))
        pilot = value(ask("pia", PILOTS, "getPilotInfo", reference))[reference]
        assert pilot["Queue"] == ("long" if queue == "long" else "")
    job_id = value(ask("ada", MANAGER, "submitJob", JDL))
    got = value(ask("pia", MATCHER, "requestJob", {**RESOURCE, "PilotReference": reference}))
    assert got["JobID"] == job_id
    pilot = value(ask("pia", PILOTS, "getPilotInfo", reference))[reference]
    assert (pilot["Status"], pilot["DestinationSite"], pilot["Jobs"]) == ("Running", "ce1", [job_id])


def test_users_have_so_many_pilots_that_have_not_ended(ask: Ask, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(bounds, "DIRAC_OWN_PILOTS", 3)
    value(ask("ada", PILOTS, "addPilotReferences", ["a", "b", "c"], "lhcb"))
    value(ask("ada", PILOTS, "addPilotReferences", ["c"], "lhcb"))
    refused = ask("ada", PILOTS, "addPilotReferences", ["c", "d"], "lhcb").json()
    assert "would have 4 pilots" in refused["Message"]
    assert not ask("ada", PILOTS, "getPilotInfo", "d").json()["OK"]
    value(ask("ada", PILOTS, "setPilotStatus", "a", "Done"))
    value(ask("ada", PILOTS, "addPilotReferences", ["d"], "lhcb"))
    value(ask("pia", PILOTS, "addPilotReferences", ["1", "2", "3", "4"], "lhcb"))


def test_pilots_of_a_group_for_pilots_count_for_their_vo(
    engine: Engine, tmp_path: Path, chains: dict[str, tuple[str, ...]]
):
    text = CONFIG.replace("{Defaults: {", "{Defaults: {Limits: {PilotsPerVO: 3}, ")
    with opened_door(engine, tmp_path, text=text) as door:
        ask = asking(door, chains)
        value(ask("pia", PILOTS, "addPilotReferences", ["a", "b", "c"], "lhcb"))
        refused = ask("pia", PILOTS, "addPilotReferences", ["c", "d"], "lhcb")
        assert refused.status_code == 429
        assert "lhcb would have more than 3 pilots" in refused.text
        assert not ask("pia", PILOTS, "getPilotInfo", "d").json()["OK"]
        value(ask("pia", PILOTS, "addPilotReferences", ["c"], "lhcb"))
        value(ask("pia", PILOTS, "setPilotStatus", "a", "Done"))
        value(ask("pia", PILOTS, "addPilotReferences", ["d"], "lhcb"))


def test_the_configuration_is_served_and_read_again(ask: Ask, tmp_path: Path):
    first = value(ask("ada", SERVER, "getCompressedDataIfNewer", "0"))
    text = zlib.decompress(b64decode(first["data"])).decode()
    assert f"Version = {first['newestVersion']}" in text
    assert "A = 1" in text
    same = value(ask("ada", SERVER, "getCompressedDataIfNewer", first["newestVersion"]))
    assert same == {"newestVersion": first["newestVersion"]}
    file = tmp_path / "cs.cfg"
    for content in ("Systems\n{\n  A = 2\n}\n", "Systems\n{\n"):  # the second cannot be read
        file.write_text(content)
        later = file.stat().st_mtime + 10
        os.utime(file, (later, later))
        newer = value(ask("ada", SERVER, "getCompressedDataIfNewer", first["newestVersion"]))
        assert "A = 2" in zlib.decompress(b64decode(newer["data"])).decode()
    assert value(ask("ada", SERVER, "writeEnabled")) is False
    assert json.dumps(value(ask("ada", SERVER, "getVersion")))


def test_other_jobs_and_their_sandboxes_do_not_exist(ask: Ask):
    job_id = value(ask("ada", MANAGER, "submitJob", JDL))
    for method, path in (("getSandboxesAssignedToEntity", SANDBOXES), ("getPilots", PILOTS)):
        argument = f"Job:{job_id}" if path == SANDBOXES else job_id
        assert "does not exist" in ask("bea", path, method, argument).json()["Message"]
    assert value(ask("ada", MONITORING, "getJobsStatus", job_id))
