from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from cryptography import x509

from examples.servers.certificates import Authority
from pilotage.cli import settings
from pilotage.cli.errors import WrongUsage
from pilotage.cli.processes import serve
from pilotage.plugins.dirac import command as dirac_door
from pilotage.plugins.dirac import routing


def test_a_connection_outlives_neither_its_certificates_nor_ten_minutes(tmp_path: Path):
    text = Authority(tmp_path).sign("ada")[0].read_text()
    end = x509.load_pem_x509_certificate(text.encode()).not_valid_after_utc
    assert dirac_door.find_end([text], end - timedelta(minutes=1)) == end
    now = datetime.now(UTC)
    assert dirac_door.find_end([text], now) == now + timedelta(minutes=10)


def test_the_address_of_a_socket_for_all_addresses_is_the_name_of_the_host():
    everywhere = "0.0.0.0"  # noqa: S104 - only its address is looked at
    with serve.bind_socket(everywhere, 0) as bound, serve.bind_socket("127.0.0.1", 0) as local:
        port, local_port = bound.getsockname()[1], local.getsockname()[1]
        assert serve.url_of(bound, tls=True, name="a.test") == f"https://a.test:{port}"
        assert serve.url_of(bound) == f"http://127.0.0.1:{port}"
        assert serve.url_of(local, name="a.test") == f"http://127.0.0.1:{local_port}"


def test_only_the_four_services_are_handed_on(tmp_path: Path):
    urls = [f"https://dirac.test:8443{path}" for path in sorted(routing.SHARED)]
    chosen = settings.load(
        {"home": tmp_path, "tls_certificate": tmp_path / "host.pem", "first_job_id": 1000}, {}
    )
    assert dirac_door._read_former(chosen, tmp_path, urls) is not None
    further = [*urls, "https://dirac.test:8443/WorkloadManagement/SandboxStore"]
    with pytest.raises(WrongUsage, match="SandboxStore cannot be handed on"):
        dirac_door._read_former(chosen, tmp_path, further)
