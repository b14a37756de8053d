"""`pilotage config import dirac` and `export dirac`, by the command, with a service."""

from pathlib import Path

import pytest

from tests.integration.pilotage.cli.test_config import CE, TREE, in_json, service, text
from tests.support.commands import Run, run
from tests.support.service import Service

__all__ = ["run", "service"]

pytestmark = pytest.mark.config(TREE)

CFG = """
Resources
{
  Sites
  {
    LCG
    {
      LCG.A.org
      {
        CEs
        {
          ce1
          {
            MaxRAM = 2000
          }
        }
      }
    }
  }
  StorageElements
  {
  }
}
"""


def test_a_configuration_of_dirac_is_shown_with_what_it_does_then_applied_and_exported(
    service: Service, run: Run, tmp_path: Path
) -> None:
    jobs = {"jobs": [{"Executable": "x", "Requirements": {"Memory": 3000}}]}
    assert service.user().post("/api/v1/jobs", json=jobs).status_code == 201
    file = tmp_path / "dirac.cfg"
    file.write_text(CFG)
    status, out, err = run("config", "import", "dirac", file)
    assert status == 0
    assert f"~ {CE}/MaxRAM = 2000 (was 4000)" in out
    assert "1 job of cms, such as 1, becomes stuck" in out
    assert "1 change; 1 note; nothing is stored" in out
    assert "Resources/StorageElements: not carried over" in err
    assert run("config", "import", "dirac", file, "--apply", "--guard", "stuck_jobs=0")[0] == 1
    assert service.parts.live.current.version == 1
    done = in_json(run, "config", "import", "dirac", file, "--apply")
    assert (done["applied"], done["version"]) == (True, 2)
    assert "MaxRAM: 2000  # of the CE" in text(service)
    assert "nothing changes" in run("config", "import", "dirac", file)[1]
    exported = run("config", "export", "dirac")[1]
    file.write_text(exported)
    assert in_json(run, "config", "import", "dirac", file)["changes"] == []
    file.write_text("Resources {")
    assert run("config", "import", "dirac", file)[0] == 2
