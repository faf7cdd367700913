"""Predicted against measured times of models on this machine, calibrated in the same run.

Models are plain torch: `dtorch.price` takes them as they are. The error is |predicted / measured - 1|.
"""

import os
import statistics
import tempfile
from collections import defaultdict
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import Any

import torch

from benchmarks.harness import Measure, Row, timed

WORST, MEDIAN = 0.40, 0.15
Made = tuple[torch.nn.Module, torch.Tensor, dict[str, Any]]

_seen: dict[str, dict[str, list[float]]] = defaultdict(lambda: {"predicted": [], "measured": []})


def rows() -> Iterator[Row]:
    names = []
    for name, make in MODELS.items():
        for what in ("forward", "training step"):
            names.append(f"{name} {what}")
            yield Row(
                name=f"{name} {what}, predicted",
                against="measured, torch eager",
                budget=WORST,
                ours=_kept(names[-1], "predicted", _predicted(make, what)),
                theirs=_kept(names[-1], "measured", _measured(make, what)),
                compare="error",
                repeats=7,
            )
    yield Row(
        name="predicted times, median error",
        against="none",
        budget=MEDIAN,
        ours=lambda: 1 + statistics.median(map(_error, names)),
        theirs=lambda: 1.0,
        compare="error",
        repeats=1,
        warmups=0,
    )


def _kept(name: str, side: str, measure: Measure) -> Measure:
    def keep() -> float:
        _seen[name][side].append(measure())
        return _seen[name][side][-1]

    return keep


def _error(name: str) -> float:
    sides = {side: statistics.median(values) for side, values in _seen[name].items()}
    return abs(sides["predicted"] / sides["measured"] - 1)


@cache
def _calibrated() -> str:
    """The name of this machine, once it has been measured; for this process alone."""
    from dtorch.perf.calibrate import calibrate
    from dtorch.perf.device import THIS_MACHINE, calibration_path

    folder = tempfile.mkdtemp(prefix="dtorch-bench-")
    os.environ["XDG_CONFIG_HOME"] = folder
    calibrate(at_least_s=0.03).save(calibration_path())
    assert calibration_path().is_relative_to(Path(folder))
    return THIS_MACHINE


def _predicted(make: Callable[[], Made], what: str) -> Measure:
    @cache
    def predict() -> float:
        import dtorch

        device = _calibrated()
        model, x, labels = make()
        if what == "forward":
            return dtorch.price(model, x, device=device).time
        return dtorch.price(model, x, device=device, optimizer="adamw", **labels).time

    return predict


def _measured(make: Callable[[], Made], what: str) -> Measure:
    @cache
    def run() -> Callable[[], object]:
        model, x, labels = make()
        optimizer = torch.optim.AdamW(model.parameters(), foreach=False)

        def forward() -> object:
            with torch.no_grad():
                return model(x)

        def step() -> None:
            optimizer.zero_grad()
            model(x, **labels).loss.backward()
            optimizer.step()

        return forward if what == "forward" else step

    return lambda: timed(run())()


def _text() -> torch.Tensor:
    return torch.randint(0, 2048, (4, 128), generator=torch.Generator().manual_seed(0))


def _images(count: int, side: int) -> torch.Tensor:
    return torch.randn(count, 3, side, side, generator=torch.Generator().manual_seed(0))


def _llama() -> Made:
    from transformers import LlamaConfig, LlamaForCausalLM

    config = LlamaConfig(
        hidden_size=256, intermediate_size=688, num_hidden_layers=4, num_attention_heads=8,
        num_key_value_heads=4, vocab_size=2048, use_cache=False,
    )  # fmt: skip
    return LlamaForCausalLM(config), _text(), {"labels": _text()}


def _gpt2() -> Made:
    from transformers import GPT2Config, GPT2LMHeadModel

    config = GPT2Config(
        n_embd=256, n_layer=4, n_head=4, vocab_size=2048, n_positions=128, use_cache=False,
        bos_token_id=0, eos_token_id=0, resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0,
    )  # fmt: skip
    return GPT2LMHeadModel(config), _text(), {"labels": _text()}


def _bert() -> Made:
    from transformers import BertConfig, BertForSequenceClassification

    config = BertConfig(
        hidden_size=256, num_hidden_layers=4, num_attention_heads=4, intermediate_size=1024, vocab_size=2048,
        hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0,
    )  # fmt: skip
    return BertForSequenceClassification(config), _text(), {"labels": torch.zeros(4, dtype=torch.long)}


def _vit() -> Made:
    from transformers import ViTConfig, ViTForImageClassification

    config = ViTConfig(
        hidden_size=192, num_hidden_layers=4, num_attention_heads=6, intermediate_size=768, image_size=112
    )
    return ViTForImageClassification(config), _images(8, 112), {"labels": torch.zeros(8, dtype=torch.long)}


def _resnet() -> Made:
    from transformers import ResNetConfig, ResNetForImageClassification

    config = ResNetConfig(hidden_sizes=[64, 128, 256, 512], depths=[2, 2, 2, 2], layer_type="basic")
    return ResNetForImageClassification(config), _images(4, 64), {"labels": torch.zeros(4, dtype=torch.long)}


MODELS: dict[str, Callable[[], Made]] = {
    "Llama": _llama,
    "GPT-2": _gpt2,
    "BERT": _bert,
    "ViT": _vit,
    "ResNet": _resnet,
}
