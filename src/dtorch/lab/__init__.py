"""The lab: what fusing and replaying are worth on this machine, measured beside what the formulas say.

`dtorch lab` runs it; `run` is the same from Python. One file per group of experiments, each a function from
the settings and the results it stands on to a `Result`; `run.py` lists them.
"""

from dtorch.lab.result import Result
from dtorch.lab.run import EXPERIMENTS, run
from dtorch.lab.settings import Settings, load_settings

__all__ = ["EXPERIMENTS", "Result", "Settings", "load_settings", "run"]
