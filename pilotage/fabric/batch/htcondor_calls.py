"""Calls of HTCondor's Python bindings, each in a process of its own: request in, answer out.

The bindings do one call at a time in a process, and wait up to 20 s for a daemon that hangs: so each call
has a process that can be killed. Imports only the standard library and the bindings, since over SSH its text
runs on a head node. The answer is one line of JSON: `{"answer": …}`, or `{"error": …, "kind": …}`.
"""

import json
import sys
from typing import Any

import classad2
import htcondor2

#: Kinds of errors: `away`: nothing was done; `refused`: for good; `uncertain`: it may have been done.
AWAY, REFUSED, UNCERTAIN = "away", "refused", "uncertain"
#: How the bindings begin their complaint of a submission that was refused, and of one that did not begin.
_REFUSED = ("Failed to create job ad", "Failed to set", "Submit:")
_NOT_BEGUN = ("Failed to connect to schedd", "Unable to connect", "Failed to authenticate")
_SLOTS = ["SlotType", "State", "Cpus", "TotalSlotCpus"]
_QUEUES = ["TotalIdleJobs", "TotalRunningJobs"]


class CallError(Exception):
    """An error of a call, and its kind."""

    def __init__(self, kind: str, message: str) -> None:
        super().__init__(message)
        self.kind = kind


def locate(request: dict[str, Any]) -> Any:
    """The queue manager of a request: by its collector, else the one of this host."""
    try:
        collector = htcondor2.Collector(request.get("collector"))
        found = collector.locate(htcondor2.DaemonType.Schedd, request.get("schedd"))
    except Exception as error:
        raise CallError(AWAY, f"{_where(request)}: {error}") from error
    if found is None:
        raise CallError(AWAY, f"{_where(request)} has no queue manager {request.get('schedd') or 'here'}")
    return htcondor2.Schedd(found)


def _where(request: dict[str, Any]) -> str:
    return f"collector {request.get('collector') or 'of this host'}"


def submit(request: dict[str, Any]) -> str:
    """Submit one job, with its files where the queue manager does not see them; its reference."""
    try:
        description = htcondor2.Submit(request["description"])
    except Exception as error:
        raise CallError(REFUSED, str(error)) from error
    schedd = locate(request)
    try:
        result = schedd.submit(description, spool=request["spool"])
    except Exception as error:
        raise CallError(_find_kind(str(error)), str(error)) from error
    reference = f"{result.cluster()}.0"
    if request["spool"]:
        try:
            schedd.spool(result)
        except Exception as error:
            raise CallError(UNCERTAIN, f"job {reference} has not got its files: {error}") from error
    return reference


def _find_kind(message: str) -> str:
    if message.startswith(_NOT_BEGUN):
        return AWAY
    return REFUSED if message.startswith(_REFUSED) else UNCERTAIN


def query(request: dict[str, Any]) -> list[dict[str, Any]]:
    """The jobs in the queue that meet a constraint."""
    return _plain(locate(request).query(request["constraint"], request["attributes"]), request["attributes"])


def history(request: dict[str, Any]) -> list[dict[str, Any]]:
    """The records of jobs that left the queue, the last ones first."""
    names = request["attributes"]
    return _plain(locate(request).history(request["constraint"], names, request["most"]), names)


def remove(request: dict[str, Any]) -> None:
    """Remove jobs; those that are not there are no error."""
    locate(request).act(htcondor2.JobAction.Remove, request["references"])


def retrieve(request: dict[str, Any]) -> None:
    """Fetch the output of jobs into the directories that they were submitted from."""
    locate(request).retrieve(request["references"])


def machines(request: dict[str, Any]) -> dict[str, list[dict[str, Any]]]:
    """The slots and queue managers of the pool."""
    collector = htcondor2.Collector(request.get("collector"))
    return {
        "slots": _plain(collector.query(htcondor2.AdType.Startd, "true", _SLOTS), _SLOTS),
        "queues": _plain(collector.query(htcondor2.AdType.Schedd, "true", _QUEUES), _QUEUES),
    }


def ping(request: dict[str, Any]) -> None:
    """Check that the queue manager is there and answers."""
    locate(request).query("false", ["ClusterId"])


CALLS = {each.__name__: each for each in (submit, query, history, remove, retrieve, machines, ping)}


def _plain(ads: Any, names: list[str]) -> list[dict[str, Any]]:
    """Ads as plain values; attributes that have none are left out."""
    found = []
    for ad in ads:
        values = {name: ad.eval(name) for name in names if name in ad}
        found.append({name: each for name, each in values.items() if not isinstance(each, classad2.Value)})
    return found


def answer(request: dict[str, Any]) -> dict[str, Any]:
    """Do one call; what goes wrong is in the answer."""
    try:
        return {"answer": CALLS[request["call"]](request)}
    except CallError as error:
        return {"error": str(error), "kind": error.kind}
    except Exception as error:  # noqa: BLE001 - of the bindings, which raise many
        return {"error": f"{request['call']}: {error}", "kind": AWAY}


def main() -> None:
    """Answer the request on standard input."""
    sys.stdout.write(json.dumps(answer(json.loads(sys.stdin.read()))) + "\n")


if __name__ == "__main__":
    main()
