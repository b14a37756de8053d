from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from cryptography import x509

from examples.servers.certificates import Authority
from pilotage.cli import settings
from pilotage.cli.errors import WrongUsage
from pilotage.cli.processes import dirac_door
from pilotage.dirac_door import routing


def test_a_connection_outlives_neither_its_certificates_nor_ten_minutes(tmp_path: Path):
    text = Authority(tmp_path).sign("ada")[0].read_text()
    end = x509.load_pem_x509_certificate(text.encode()).not_valid_after_utc
    assert dirac_door.find_end([text], end - timedelta(minutes=1)) == end
    now = datetime.now(UTC)
    assert dirac_door.find_end([text], now) == now + timedelta(minutes=10)


def test_only_the_four_services_are_handed_on(tmp_path: Path):
    urls = [f"https://dirac.test:8443{path}" for path in sorted(routing.SHARED)]
    chosen = settings.load(
        {"home": tmp_path, "tls_certificate": tmp_path / "host.pem", "first_job_id": 1000}, {}
    )
    assert dirac_door._read_former(chosen, tmp_path, urls) is not None
    further = [*urls, "https://dirac.test:8443/WorkloadManagement/SandboxStore"]
    with pytest.raises(WrongUsage, match="SandboxStore cannot be handed on"):
        dirac_door._read_former(chosen, tmp_path, further)
