from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent.parent.parent


@pytest.fixture(scope="session")
def osg_path() -> Path:
    return ROOT / "examples" / "osg" / "resources.yaml"


@pytest.fixture(scope="session")
def osg_text(osg_path: Path) -> str:
    return osg_path.read_text()
