"""What is hidden from payloads in namespaces."""

from pathlib import Path

from pilotage.fabric.pilot.payload import isolation


def test_what_our_environment_names_is_hidden_the_outermost_first() -> None:
    own = {"HOME": "/home/pilot", "X509_USER_PROXY": "/home/pilot/x509", "TMPDIR": "", "PATH": "/opt/bin"}
    found = [
        str(path) for path in isolation.private_paths(own, Path("/scratch/jobs"), None, Path("/scratch"))
    ]
    assert {"/tmp", "/home/pilot", "/home/pilot/x509", "/run/munge", "/scratch"} <= set(found)
    assert found.index("/home/pilot") < found.index("/home/pilot/x509")
    assert found.index("/scratch") < found.index("/scratch/jobs")
    assert "/opt/bin" not in found
    assert len(found) == len(set(found))


def test_the_root_itself_cannot_be_hidden() -> None:
    assert Path("/") not in isolation.private_paths({"HOME": "/"}, Path("/"))


def test_what_is_hidden_stands_between_the_work_area_and_the_payload() -> None:
    words = isolation.namespace_words([Path("/a"), Path("/b c")])
    assert words[-3:] == ("/a", "/b c", "--")
    assert "{area}" in words
