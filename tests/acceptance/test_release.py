"""What `./dev release` promises: equal sources make equal wheels, a signature verifies the checksums."""

import hashlib
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

PROJECT = Path(__file__).parents[2]


def _build(source: Path, into: Path) -> str:
    """Build the wheel of a directory; its SHA-256."""
    environment = {**os.environ, "SOURCE_DATE_EPOCH": "1785000000"}
    command = [sys.executable, "-m", "uv", "build", "--quiet", "--wheel", "--out-dir", str(into), str(source)]
    subprocess.run(command, env=environment, check=True)
    (wheel,) = into.glob("*.whl")
    return hashlib.sha256(wheel.read_bytes()).hexdigest()


def test_two_builds_are_equal(tmp_path: Path) -> None:
    listed = subprocess.run(["git", "ls-files"], cwd=PROJECT, check=True, capture_output=True, text=True)
    digests = set()
    for name in ("first", "second"):
        for file in listed.stdout.splitlines():
            (tmp_path / name / file).parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(PROJECT / file, tmp_path / name / file)  # with another time each
        digests.add(_build(tmp_path / name, tmp_path / f"wheel of {name}"))
    assert len(digests) == 1


def test_no_advisory_is_known_about_what_a_release_pins() -> None:
    pins = PROJECT / "deploy" / "requirements.txt"
    command = [sys.executable, "-m", "uv", "tool", "run", "--quiet", "pip-audit", "--disable-pip"]
    try:
        done = subprocess.run(
            [*command, "--requirement", str(pins)], check=False, capture_output=True, text=True, timeout=300
        )
    except subprocess.TimeoutExpired:
        pytest.skip("NOT RUN: no data of advisories came, only deploy/advisories.toml was read")
    said = done.stdout + done.stderr
    assert "known vulnerabilit" not in said or "No known" in said, said
    if done.returncode != 0 or "could not be audited" in said or "not found on PyPI" in said:
        pytest.skip(
            f"NOT RUN: no data of advisories here, only deploy/advisories.toml was read: {said[-300:]}"
        )


def test_checksums_are_verified_by_their_signature(tmp_path: Path) -> None:
    key, sums = tmp_path / "key", tmp_path / "SHA256SUMS"
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", key], check=True)
    (tmp_path / "signers").write_text(f"pilotage {(tmp_path / 'key.pub').read_text()}")
    sums.write_text("0123  pilotage.whl\n")
    subprocess.run(["ssh-keygen", "-Y", "sign", "-f", key, "-n", "pilotage-release", sums], check=True)

    def verifies() -> bool:
        command = ["ssh-keygen", "-Y", "verify", "-f", tmp_path / "signers", "-I", "pilotage"]
        command += ["-n", "pilotage-release", "-s", tmp_path / "SHA256SUMS.sig"]
        return subprocess.run(command, input=sums.read_bytes()).returncode == 0

    assert verifies()
    sums.write_text("4567  pilotage.whl\n")
    assert not verifies()
