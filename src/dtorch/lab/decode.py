"""[F3] placeholder"""

from collections.abc import Mapping

from dtorch.lab.result import Result
from dtorch.lab.settings import Settings


def decode(settings: Settings, before: Mapping[str, Result]) -> Result:
    """x"""
    return Result("F3", "t", (), ())
