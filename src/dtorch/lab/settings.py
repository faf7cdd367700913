"""What can be changed about the experiments, with the values they have when nothing is said."""

from __future__ import annotations

from pathlib import Path

import msgspec

from dtorch.errors import OptionError
from dtorch.perf.kernels import FUSED, UNFUSED, Spelling
from dtorch.perf.measure import CALL_SIZES, WORKING_SETS


class Attention(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Unfused attention: batch, heads, tokens, width, bytes per element."""

    batch: int = 8
    heads: int = 16
    tokens: int = 2048
    width: int = 4096
    itemsize: int = 2


class Launch(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Kernels and times of the launch model, microseconds."""

    kernels: int = 700
    launch_us: float = 3.0
    execution_us: float = 2.0
    dispatch_us: float = 0.5
    executions_us: tuple[float, ...] = (0.5, 1.0, 2.0, 3.0, 5.0, 8.0, 12.0, 20.0, 40.0)


class Kernels(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A decode step as a list: what each layer launches, and what the step launches beside its layers."""

    layer: dict[str, int]
    once: dict[str, int]

    @property
    def spelling(self) -> Spelling:
        """The same as `dtorch.perf.kernels` counts it."""
        return Spelling(self.layer, self.once)


def _listed(spelling: Spelling) -> Kernels:
    return Kernels(dict(spelling.layer), dict(spelling.once))


class Settings(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Sizes, counts and times of the experiments. A TOML file changes those it names."""

    steps: int = 8
    scale: float = 1.01
    shift: float = 0.01
    elements: int = 4_000_000
    chain_sizes: tuple[int, ...] = (512, 4096, 65536, 262144, 1048576, 4_000_000)
    tiles: tuple[int, ...] = (16384, 65536, 262144, 1048576)
    working_sets: tuple[int, ...] = WORKING_SETS
    stride: int = 32
    call_sizes: tuple[int, ...] = CALL_SIZES
    attention: Attention = Attention()
    score_tokens: tuple[int, ...] = (1024, 2048, 4096, 8192)
    blocks: tuple[int, ...] = (64, 128, 256)
    softmax_shape: tuple[int, int, int] = (8, 1024, 1024)
    softmax_rows: int = 64
    launch: Launch = Launch()
    layers: int = 32
    unfused: Kernels = msgspec.field(default_factory=lambda: _listed(UNFUSED))
    fused: Kernels = msgspec.field(default_factory=lambda: _listed(FUSED))
    record: bool = True
    seconds_each: float = 0.05
    compile: bool = True

    def __post_init__(self) -> None:
        wrong = [
            name
            for name in ("steps", "elements", "stride", "softmax_rows", "layers", "seconds_each")
            if not getattr(self, name) > 0
        ]
        empty = [
            name for name in ("chain_sizes", "tiles", "working_sets", "call_sizes") if not getattr(self, name)
        ]
        if wrong or empty:
            raise ValueError(f"{', '.join(wrong + empty)}: has to be above 0, lists have to have entries")


def load_settings(path: str | Path | None = None) -> Settings:
    """The settings of a TOML file; what the file does not name keeps its value.

        steps = 16
        [launch]
        execution_us = 1.0

    Raises:
        OptionError: no such file, no TOML, an unknown name, or a value of the wrong type.
    """
    if path is None:
        return Settings()
    try:
        return msgspec.toml.decode(Path(path).read_bytes(), type=Settings)
    except (OSError, msgspec.MsgspecError, ValueError) as error:
        raise OptionError(
            f"settings of the lab, {path}: {error}. Names are those of dtorch.lab.Settings: "
            + ", ".join(Settings.__struct_fields__)
        ) from error
