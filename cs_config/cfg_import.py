"""What DIRAC's configuration would change in the tree."""

from cs_config import cfg_text, overlay
from cs_config.cfg_layout import Layout
from cs_config.configuration import Configuration
from cs_config.overlay import Imported
from requirements.values import fold


def propose(config: Configuration, text: str, file: str) -> Imported:
    """The configuration in force with DIRAC's over it.

    Raises:
        ConfigError: The text is wrong, or what would come out is, and not by what the text says.
    """
    layout = Layout(file=file, vos=config.vos | _vos(text, file))
    tree = layout.ours(cfg_text.read(text, file))
    return overlay.over(config, tree, layout.notes, file)


def _vos(text: str, file: str) -> frozenset[str]:
    return frozenset(map(fold, cfg_text.read(text, file).section("Registry").section("VO").entries))
