"""The settings of web hooks."""

from pathlib import Path

import pytest

from pilotage.cli import engine, home_directory, settings, wiring
from pilotage.cli.processes import serve
from pilotage.cli.settings import InvalidSettings
from pilotage.plugins.web_hooks.settings import HookSettings


def test_they_are_read_from_file_and_variables(tmp_path: Path) -> None:
    (tmp_path / "pilotage.yaml").write_text("web_hook_networks: 10.20.0.0/16\nmail_from: a@example.org\n")
    variables = {
        "PILOTAGE_WEB_HOOK_REFUSED_NETWORKS": "[192.0.2.0/24]",
        "PILOTAGE_MAIL_SERVER": "smtps://mail.example.org:465",
    }
    chosen = settings.load({"home": tmp_path}, variables).of(HookSettings)
    assert (chosen.web_hook_networks, chosen.web_hook_refused_networks) == (
        ("10.20.0.0/16",),
        ("192.0.2.0/24",),
    )
    assert (chosen.mail_server, chosen.mail_from) == ("smtps://mail.example.org:465", "a@example.org")


def test_without_them_mail_is_not_sent_and_only_the_internet_is_reached(tmp_path: Path) -> None:
    chosen = settings.load({"home": tmp_path}, {}).of(HookSettings)
    assert (chosen.mail_server, chosen.web_hook_networks) == (None, ())


@pytest.mark.parametrize("line", ["mail_server: smtp://localhost:smtp", "web_hook_networks: ten"])
def test_a_wrong_value_is_named_as_it_was_given(line: str, tmp_path: Path) -> None:
    (tmp_path / "pilotage.yaml").write_text(f"{line}\n")
    with pytest.raises(InvalidSettings, match=f"pilotage.yaml: {line.partition(':')[0]}"):
        settings.load({"home": tmp_path}, {})


def test_the_service_has_those_of_its_process(tmp_path: Path) -> None:
    (tmp_path / "pilotage.yaml").write_text("web_hook_networks: 10.20.0.0/16\n")
    chosen = settings.load({"home": tmp_path}, {})
    home_directory.make_home(tmp_path)
    engine.upgrade_schema(chosen.direct_url)
    with wiring.open_current_engine(chosen) as opened, serve.run_services(chosen, opened) as parts:
        assert parts.settings_of(HookSettings).web_hook_networks == ("10.20.0.0/16",)
