"""Writing a tree as YAML that `source` reads back as the same tree."""

from collections.abc import Mapping

import yaml

from cs_config.scalars import looks_special


class _Dumper(yaml.CSafeDumper):
    """Quotes every text that our own reading would take for something else; writes no aliases."""

    def ignore_aliases(self, data: object) -> bool:  # noqa: ARG002  (PyYAML names it)
        """Write what stands at several places at each of them: the reader refuses anchors."""
        return True


# PyYAML quotes texts that a resolver claims. These are the words that only we (YAML 1.2) claim.
_Dumper.add_implicit_resolver("!special", looks_special, list("-+.0123456789"))


def to_yaml(tree: Mapping[str, object]) -> str:
    """The text of a configuration that was sent as a tree."""
    return yaml.dump(
        dict(tree), Dumper=_Dumper, sort_keys=False, allow_unicode=True, default_flow_style=False
    )


def in_line(tree: Mapping[str, object]) -> str:
    """The same in one line, in braces."""
    text = yaml.dump(
        dict(tree),
        Dumper=_Dumper,
        sort_keys=False,
        allow_unicode=True,
        default_flow_style=True,
        width=2**31 - 1,
    )
    return str(text).rstrip("\n")
