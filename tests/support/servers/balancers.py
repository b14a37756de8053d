"""HAProxy and nginx as the shipped examples set them up, on ports of their own."""

import os
import re
import shutil
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from examples.servers.certificates import Authority
from examples.servers.debian import PATH, Suite
from examples.servers.starting import free_port

DEPLOY = Path(__file__).parents[3] / "deploy"
HAPROXY = Suite(about="the load balancer HAProxy", programs=("haproxy",), packages=("haproxy",))
NGINX = Suite(about="the web server nginx as a load balancer", programs=("nginx",), packages=("nginx-light",))
#: The two hosts of the examples.
_HOSTS = ("a.example.org:8750", "b.example.org:8750")


@dataclass(frozen=True, slots=True, kw_only=True)
class Balancer:
    """Where it is reached, and who vouches for it."""

    url: str
    authority: Path


@contextmanager
def haproxy(directory: Path, services: Sequence[str]) -> Iterator[Balancer]:
    """HAProxy before two services, `host:port` each."""
    port, authority = free_port(), Authority(directory)
    certificate, key = authority.sign("balancer")
    both = directory / "pilotage.pem"
    both.write_bytes(certificate.read_bytes() + key.read_bytes())
    text = _before(DEPLOY / "haproxy" / "haproxy.cfg", services)
    text = text.replace(
        "timeout connect 2s", "timeout connect 2s\n    timeout check 60s"
    )  # of a busy machine
    text = text.replace("bind :443", f"bind 127.0.0.1:{port}").replace("/etc/haproxy/pilotage.pem", str(both))
    file = directory / "haproxy.cfg"
    file.write_text(text)
    with _running([_program("haproxy"), "-db", "-f", str(file)], check="-c"):
        yield Balancer(url=f"https://127.0.0.1:{port}", authority=authority.certificate)


@contextmanager
def nginx(directory: Path, services: Sequence[str]) -> Iterator[Balancer]:
    """nginx before two services, `host:port` each."""
    port, authority = free_port(), Authority(directory)
    certificate, key = authority.sign("balancer")
    text = _before(DEPLOY / "nginx" / "pilotage.conf", services)
    for shipped, ours in (
        ("listen 443", f"listen 127.0.0.1:{port}"),
        ("/etc/nginx/pilotage.pem", str(certificate)),
        ("/etc/nginx/pilotage.key", str(key)),
    ):
        assert shipped in text
        text = text.replace(shipped, ours)
    (directory / "pilotage.conf").write_text(text)
    paths = ("client_body", "proxy", "fastcgi", "uwsgi", "scgi")
    places = "".join(f"    {name}_temp_path {directory / name};\n" for name in paths)
    user = "user root;\n" if os.geteuid() == 0 else ""  # its files are ours
    file = directory / "nginx.conf"
    file.write_text(
        f"{user}pid {directory / 'pid'};\nerror_log stderr;\ndaemon off;\nevents {{}}\n"
        f"http {{\n    access_log off;\n{places}    include {directory / 'pilotage.conf'};\n}}\n"
    )
    with _running([_program("nginx"), "-p", str(directory), "-c", str(file)], check="-t"):
        yield Balancer(url=f"https://127.0.0.1:{port}", authority=authority.certificate)


def _before(shipped: Path, services: Sequence[str]) -> str:
    text = shipped.read_text()
    for host, service in zip(_HOSTS, services, strict=True):
        assert host in text
        text = re.sub(re.escape(host), service, text)
    return text


def _program(name: str) -> str:
    program = shutil.which(name, path=PATH)
    assert program
    return program


@contextmanager
def _running(command: Sequence[str], *, check: str) -> Iterator[None]:
    """The server as a child of ours; first it has to find no fault with its configuration."""
    done = subprocess.run([*command, check], capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    process = subprocess.Popen(command, stderr=subprocess.DEVNULL)
    try:
        yield
    finally:
        process.terminate()
        process.wait(90)
