"""The REST interface of A-REX: few requests, each answered whole or not at all.

Source: NorduGrid, ARC CE REST interface 1.0.
"""

import json
import ssl
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import batched
from pathlib import Path
from typing import Any

import httpx

from pilotage.fabric.batch.errors import BatchSystemAway
from pilotage.fabric.batch.shell import NoAnswer
