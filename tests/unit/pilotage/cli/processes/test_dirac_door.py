from datetime import UTC, datetime, timedelta
from pathlib import Path

from cryptography import x509

from examples.servers.certificates import Authority
from pilotage.cli.processes import dirac_door


def test_a_connection_outlives_neither_its_certificates_nor_ten_minutes(tmp_path: Path):
    text = Authority(tmp_path).sign("ada")[0].read_text()
    end = x509.load_pem_x509_certificate(text.encode()).not_valid_after_utc
    assert dirac_door.find_end([text], end - timedelta(minutes=1)) == end
    now = datetime.now(UTC)
    assert dirac_door.find_end([text], now) == now + timedelta(minutes=10)
