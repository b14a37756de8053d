import pytest

from pilotage.cli import engine


@pytest.mark.parametrize(
    ("url", "told"),
    [
        ("sqlite:////var/lib/pilotage.db", "sqlite:////var/lib/pilotage.db"),
        ("postgresql://ada:secret@db.example.org/jobs", "postgresql://ada:***@db.example.org/jobs"),
        (
            "postgresql://ada@db.example.org/jobs?password=secret&sslpassword=secret&sslmode=require",
            "postgresql://ada@db.example.org/jobs?sslmode=require",
        ),
        ("postgresql:///jobs?host=%2Frun%2Fpostgresql", "postgresql:///jobs?host=%2Frun%2Fpostgresql"),
    ],
)
def test_a_url_is_shown_without_its_passwords(url: str, told: str) -> None:
    assert engine.hide_password(url) == told
