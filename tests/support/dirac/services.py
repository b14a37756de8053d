"""Services of a genuine DIRAC: its own Configuration Server; with jobs in memory the four that move.

Imported by the Python of a genuine DIRAC: its own protocol at the ports of the configuration, and HTTPS.
"""

# ruff: noqa: N802, ARG002  (the names and arguments are those of DIRAC)
import ssl
import sys
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs

import DIRAC

SERVICES = ("JobManager", "JobMonitoring", "JobStateUpdate", "Matcher")
_PROPERTIES = {
    "submitJob": "NormalUser",
    "requestJob": "GenericPilot",
    "getMatchingTaskQueues": "GenericPilot",
}
_LOCK = threading.Lock()


class Jobs:
    """The methods of all services; each has the caller's credentials first."""

    def __init__(self) -> None:
        self._jobs: dict[int, dict[str, Any]] = {}

    def submitJob(self, peer: Any, text: str) -> Any:
        job_id = len(self._jobs) + 1
        self._jobs[job_id] = {
            "JobID": job_id,
            "Status": "Waiting",
            "Owner": peer["username"],
            "OwnerGroup": peer["group"],
            "JDL": text,
            "Parameters": {},
        }
        return {"OK": True, "Value": job_id, "JobID": job_id, "requireProxyUpload": False}

    def _waiting(self, peer: Any) -> list[dict[str, Any]]:
        vo = peer["group"].split("_")[0]
        return [
            each
            for each in self._jobs.values()
            if each["Status"] == "Waiting" and each["OwnerGroup"].startswith(vo)
        ]

    def requestJob(self, peer: Any, resource: dict[str, Any]) -> Any:
        for job in self._waiting(peer):
            job["Status"] = "Matched"
            names = ("JobID", "Owner", "JDL")
            value = {name: job[name] for name in names}
            return {"OK": True, "Value": {**value, "Group": job["OwnerGroup"], "DN": "/DC=test"}}
        return DIRAC.S_ERROR(1510, "nothing")

    def getMatchingTaskQueues(self, peer: Any, resource: dict[str, Any]) -> Any:
        jobs = self._waiting(peer)
        return {"OK": True, "Value": {1: {"OwnerGroup": "lhcb_user", "Jobs": len(jobs)}} if jobs else {}}

    def _named(self, given: Any) -> list[dict[str, Any]]:
        ids = given if isinstance(given, list) else [given]
        return [self._jobs[int(each)] for each in ids if int(each) in self._jobs]

    def getJobsStatus(self, peer: Any, ids: Any) -> Any:
        return {"OK": True, "Value": {job["JobID"]: {"Status": job["Status"]} for job in self._named(ids)}}

    def getJobsStates(self, peer: Any, ids: Any) -> Any:
        unknown = {"MinorStatus": "", "ApplicationStatus": ""}
        found = {job["JobID"]: {"Status": job["Status"], **unknown} for job in self._named(ids)}
        return {"OK": True, "Value": found}

    def getJobsSites(self, peer: Any, ids: Any) -> Any:
        return {"OK": True, "Value": {job["JobID"]: {"Site": "ANY"} for job in self._named(ids)}}

    def getActiveTaskQueues(self, peer: Any) -> Any:
        return self.getMatchingTaskQueues(peer, {})

    def getJobs(self, peer: Any, wanted: Any = None, since: Any = None) -> Any:
        chosen = [
            job
            for job in self._jobs.values()
            if job["Owner"] == peer["username"]
            and all(job.get(name) == wanted[name] for name in wanted or {})
        ]
        return {"OK": True, "Value": [str(job["JobID"]) for job in chosen]}

    def getJobSummary(self, peer: Any, job_id: int) -> Any:
        return {"OK": True, "Value": self._named(job_id)[0]}

    def getJobParameters(self, peer: Any, ids: Any, name: Any = None) -> Any:
        return {"OK": True, "Value": {job["JobID"]: job["Parameters"] for job in self._named(ids)}}

    def getActiveThings(self, peer: Any) -> Any:
        return {"OK": True, "Value": peer["username"]}

    def setJobStatus(self, peer: Any, job_id: int, status: str, *_: Any) -> Any:
        self._named(job_id)[0]["Status"] = status
        return {"OK": True, "Value": 1}

    def sendHeartBeat(self, peer: Any, job_id: int, dynamic: Any, static: Any) -> Any:
        self._named(job_id)[0]["Parameters"].update(static)
        return {"OK": True, "Value": {}}

    def deleteJob(self, peer: Any, ids: Any, force: bool = False) -> Any:
        return self.killJob(peer, ids, force)

    def killJob(self, peer: Any, ids: Any, force: bool = False) -> Any:
        own = [job for job in self._named(ids) if job["Owner"] == peer["username"]]
        for job in own:
            job["Status"] = "Killed"
        foreign = [job["JobID"] for job in self._named(ids) if job not in own]
        more = {"NonauthorizedJobIDs": foreign} if foreign else {}
        return {"OK": True, "Value": [job["JobID"] for job in own], "requireProxyUpload": False, **more}


_JOBS = Jobs()
_METHODS = [name for name in vars(Jobs) if not name.startswith("_")]


def _call(name: str, peer: Any, arguments: Any) -> Any:
    with _LOCK:
        return getattr(_JOBS, name)(peer, *arguments)


def _make_handler() -> type:
    from DIRAC.Core.DISET.RequestHandler import RequestHandler

    def method(name: str) -> Any:
        return lambda self, *arguments: _call(name, self.getRemoteCredentials(), arguments)

    members: dict[str, Any] = {}
    for name in _METHODS:
        members |= {f"export_{name}": method(name), f"types_{name}": [], f"auth_{name}": _rights(name)}
    return type("services", (RequestHandler,), members)


def _rights(name: str) -> list[str]:
    return [_PROPERTIES.get(name, "authenticated")]


class _Https(BaseHTTPRequestHandler):
    """As DIRAC's services over HTTPS."""

    def do_POST(self) -> None:
        from DIRAC.Core.DISET.AuthManager import AuthManager
        from DIRAC.Core.Utilities import JEncode

        form = parse_qs(self.rfile.read(int(self.headers["Content-Length"])).decode())
        subject = self.connection.getpeercert()["subject"]
        short = {"domainComponent": "DC", "commonName": "CN"}
        dn = "".join(f"/{short[name]}={value}" for [(name, value)] in subject)
        peer: dict[str, Any] = {"DN": dn}
        if "extraCredentials" in form:
            peer["extraCredentials"] = JEncode.decode(form["extraCredentials"][0].encode())[0]
        name = form["method"][0]
        if name not in _METHODS:
            return self._answer(501, b"unknown")
        if not AuthManager("/Nowhere").authQuery(name, peer, _rights(name)):
            return self._answer(401, b"Unauthorized query")
        result = _call(name, peer, JEncode.decode(form["args"][0].encode())[0])
        return self._answer(200, JEncode.encode(result).encode())

    def _answer(self, status: int, content: bytes) -> None:
        self.send_response(status)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)


def main() -> None:
    """Serve until the end; the arguments are the port of HTTPS, and the directory of the certificates."""
    port, directory = int(sys.argv[1]), Path(sys.argv[2])
    DIRAC.initialize(require_auth=False, host_credentials=True)
    from DIRAC.Core.DISET.ServiceReactor import ServiceReactor

    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(directory / "dirac.pem", directory / "dirac.key")
    context.verify_mode = ssl.CERT_REQUIRED
    context.load_verify_locations(cafile=str(directory / "ca.pem"))
    server = ThreadingHTTPServer(("127.0.0.1", port), _Https)
    server.socket = context.wrap_socket(server.socket, server_side=True)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    reactor = ServiceReactor()
    names = [*(f"WorkloadManagement/{name}" for name in SERVICES), "Configuration/Server"]
    for result in (reactor.initialize(names), reactor.serve()):
        assert result is None or result["OK"], result


#: The handler of all four services, named as the module.
services = _make_handler()
