"""How much the evaluation of parts of one expression may take, counted before it is done.

A part is tried with everything that nodes may have; few combinations of a long part take as long as many of
a short one, and a regular expression takes as long as hundreds of comparisons.
"""

from dataclasses import dataclass, field

from requirements.regexps import is_regexp
from requirements.syntax import Node, children

#: What one run over one expression may spend, in evaluations of an operator or a name: ten in a microsecond.
MAX_EFFORT = 500_000

#: In the same unit: a pattern over a text of some thousand characters.
_REGEXP = 200
#: Telling the library what an attribute is this time.
_NAME = 30
#: Evaluations that take as long as making a part ready for them.
_READING = 50


@dataclass(slots=True, kw_only=True)
class Effort:
    """What is left to spend."""

    left: int = MAX_EFFORT
    _weights: dict[int, int] = field(default_factory=dict)  #: by id of a part of the expression

    def spend(self, node: Node, *, names: int, combinations: int) -> bool:
        """Whether a part may be tried; if it may, that is spent.

        Args:
            node: A part of the one expression, which has to outlive this.
            names: How many attributes change between combinations.
            combinations: How often it would be evaluated.
        """
        effort = (combinations + _READING) * (self._weight(node) + names * _NAME)
        if effort > self.left:
            return False
        self.left -= effort
        return True

    def _weight(self, node: Node) -> int:
        known = self._weights.get(id(node))
        if known is None:
            own = _REGEXP if is_regexp(node) else 1
            known = self._weights[id(node)] = own + sum(self._weight(each) for each in children(node))
        return known
