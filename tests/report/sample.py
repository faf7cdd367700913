"""A report as `Report.to_dict()` gives it, of a Llama-like training step that nobody ran.

Its numbers follow the formulas of a roofline, so that the tests of tables, pages and figures have something
to check; names of modules and files hold what has to be escaped.
"""

from __future__ import annotations

from typing import Any

PEAKS = {"fp32": 67e12, "tf32": 494.7e12, "bf16": 989.4e12, "fp16": 989.4e12, "fp8": 1978.9e12}
BANDWIDTH, LINK, LAUNCH = 3350e9, 450e9, 2e-6
BATCH, LENGTH, HIDDEN, INNER, HEADS, VOCAB = 4, 2048, 4096, 14336, 32, 128256
TOKENS = BATCH * LENGTH
DP, TP = 2, 8

# Module and file names come from the user's code: a page must show them, and nothing else.
HOSTILE_MODULE = 'head.<script>window.broken = 1</script>&"quoted"'
HOSTILE_SOURCE = "/home/user/<img src=x onerror='window.broken = 2'>.py:7"


def spec(shape: list[int], placements: list[str], dtype: str = "bfloat16") -> dict[str, Any]:
    return {"shape": shape, "dtype": dtype, "placements": placements}


class Steps:
    """Collects operators and sets their times: the dearest channel, and at least one launch."""

    def __init__(self) -> None:
        self.operators: list[dict[str, Any]] = []
        self.clock = 0.0

    def add(
        self,
        kind: str,
        module: str,
        phase: str,
        outputs: list[dict[str, Any]],
        inputs: list[dict[str, Any]],
        flops: int | None = None,
        traffic: int = 0,
        sent: int = 0,
        communication: dict[str, Any] | None = None,
        source: str = "modeling_llama.py:312",
        known: bool = True,
    ) -> None:
        """FLOPs, bytes and bytes sent are those of all devices together."""
        devices = DP * TP
        channels = {
            "compute": (flops or 0) / devices / PEAKS["bf16"],
            "memory": traffic / devices / BANDWIDTH,
            "communication": sent / devices / LINK,
            "launch": LAUNCH if kind != "View" else 0.0,
        }
        bound = max(channels, key=lambda name: channels[name]) if any(channels.values()) else None
        time = max(channels.values())
        shapes = ", ".join(str(one["shape"]) for one in inputs)
        self.operators.append(
            {
                "index": len(self.operators),
                "kind": kind,
                "torch_op": f"aten.{kind.lower()}.default",
                "describe": f"{kind}({shapes})",
                "module": module,
                "phase": phase,
                "source": source,
                "inputs": inputs,
                "outputs": outputs,
                "flops": flops,
                "flops_max_device": None if flops is None else flops // devices,
                "traffic_bytes": traffic,
                "traffic_bytes_max_device": traffic // devices,
                "bandwidth_bytes": traffic,
                "sent_bytes": sent,
                "sent_bytes_max_device": sent // devices,
                "communication": communication,
                "known": known,
                "peak": None if flops is None else "bf16",
                "bound": bound,
                "time_s": time,
                "start_s": self.clock,
                "stream": "communicate" if communication else "compute",
                "measured_s": None,
                "kernels": 0 if kind == "View" else 1,
            }
        )
        self.clock += time

    def linear(self, module: str, phase: str, n: int, k: int, cut: str) -> None:
        """y[tokens, n] = x[tokens, k] w[n, k], cut along n ("n") or k ("k"); backward is two of them."""
        x = spec([TOKENS, k], ["Shard(0)", "Shard(1)" if cut == "k" else "Replicate()"])
        w = spec([n, k], ["Replicate()", "Shard(0)" if cut == "n" else "Shard(1)"])
        y = spec([TOKENS, n], ["Shard(0)", "Shard(1)" if cut == "n" else "Partial()"])
        for _ in range(1 if phase == "forward" else 2):
            traffic = 2 * (TOKENS * k + DP * n * k + TOKENS * n)
            self.add("Matmul", module, phase, [y], [x, w], 2 * TOKENS * n * k, traffic)

    def elementwise(self, kind: str, module: str, phase: str, width: int, flops: int = 1) -> None:
        x = spec([TOKENS, width], ["Shard(0)", "Replicate()"])
        copies = TP if width == HIDDEN else 1
        self.add(
            kind, module, phase, [x], [x, x], flops * TOKENS * width * copies, 6 * TOKENS * width * copies
        )

    def reduce(self, module: str, phase: str, axis: str, bytes_: int, implicit: bool, cause: str) -> None:
        shape = [TOKENS, HIDDEN] if axis == "tp" else [HIDDEN, HIDDEN]
        devices = {"tp": TP, "dp": DP}[axis]
        sent = 2 * bytes_ * (devices - 1)
        entry = {"kind": "all_reduce", "axes": axis, "implicit": implicit, "cause": cause}
        tensor = spec(shape, ["Shard(0)", "Replicate()"])
        self.add("Convert", module, phase, [tensor], [tensor], None, 0, sent, entry)


def layer(steps: Steps, name: str, phase: str) -> None:
    """One decoder layer of Llama, forward or backward."""
    attention, mlp = f"{name}.self_attn", f"{name}.mlp"
    steps.elementwise("RMSNorm", f"{name}.input_layernorm", phase, HIDDEN, 4)
    steps.linear(f"{attention}.q_proj", phase, HIDDEN, HIDDEN, "n")
    steps.linear(f"{attention}.k_proj", phase, HIDDEN // 4, HIDDEN, "n")
    steps.linear(f"{attention}.v_proj", phase, HIDDEN // 4, HIDDEN, "n")
    heads = spec([BATCH, HEADS, LENGTH, HIDDEN // HEADS], ["Shard(0)", "Shard(1)"])
    steps.add("View", attention, phase, [heads], [spec([TOKENS, HIDDEN], ["Shard(0)", "Shard(1)"])])
    steps.elementwise("BroadcastBinary", attention, phase, HIDDEN // 8, 3)
    times = 1 if phase == "forward" else 2
    steps.add(
        "Sdpa",
        attention,
        phase,
        [heads],
        [heads, heads, heads],
        times * 4 * BATCH * LENGTH * LENGTH * HIDDEN // 2,
        times * 8 * TOKENS * HIDDEN,
        source="modeling_llama.py:268",
    )
    steps.linear(f"{attention}.o_proj", phase, HIDDEN, HIDDEN, "k")
    steps.reduce(attention, phase, "tp", 2 * TOKENS * HIDDEN, True, "BroadcastBinary")
    steps.elementwise("BroadcastBinary", name, phase, HIDDEN)
    steps.elementwise("RMSNorm", f"{name}.post_attention_layernorm", phase, HIDDEN, 4)
    steps.linear(f"{mlp}.gate_proj", phase, INNER, HIDDEN, "n")
    steps.elementwise("Activation", f"{mlp}.act_fn", phase, INNER // 8, 5)
    steps.linear(f"{mlp}.up_proj", phase, INNER, HIDDEN, "n")
    steps.elementwise("BroadcastBinary", mlp, phase, INNER // 8)
    steps.linear(f"{mlp}.down_proj", phase, HIDDEN, INNER, "k")
    steps.reduce(mlp, phase, "tp", 2 * TOKENS * HIDDEN, True, "BroadcastBinary")
    steps.elementwise("BroadcastBinary", name, phase, HIDDEN)


def training_step(num_layers: int, unknown: bool) -> list[dict[str, Any]]:
    steps = Steps()
    hidden = spec([TOKENS, HIDDEN], ["Shard(0)", "Replicate()"])
    table = spec([VOCAB, HIDDEN], ["Replicate()", "Shard(0)"])
    steps.add("Embedding", "model.embed_tokens", "forward", [hidden], [table], None, 6 * TOKENS * HIDDEN)
    names = [f"model.layers.{number}" for number in range(num_layers)]
    for name in names:
        layer(steps, name, "forward")
    steps.elementwise("RMSNorm", "model.norm", "forward", HIDDEN, 4)
    steps.linear("lm_head", "forward", VOCAB, HIDDEN, "n")
    steps.elementwise("CrossEntropy", "", "forward", VOCAB // 8, 6)
    if unknown:
        steps.add(
            "General",
            HOSTILE_MODULE,
            "forward",
            [hidden],
            [hidden],
            None,
            4 * TOKENS * HIDDEN,
            source=HOSTILE_SOURCE,
            known=False,
        )
    steps.linear("lm_head", "backward", VOCAB, HIDDEN, "n")
    for name in reversed(names):
        layer(steps, name, "backward")
        steps.reduce(name, "backward", "dp", 2 * HIDDEN * HIDDEN * 13 // TP, False, "")
    for name in names:
        steps.elementwise("Foreach", name, "optimizer", HIDDEN * 2, 12)
    return steps.operators


def memory_of(operators: list[dict[str, Any]], num_layers: int) -> list[dict[str, Any]]:
    """Bytes of the fullest device after each operator; activations pile up forward and go backward."""
    parameters = 2 * (num_layers * 13 * HIDDEN * HIDDEN + 2 * VOCAB * HIDDEN) // TP
    forward = sum(operator["phase"] == "forward" for operator in operators)
    steps = []
    for number, operator in enumerate(operators):
        done = min(number / forward, 1.0)
        back = max(0.0, (number - forward) / (len(operators) - forward))
        size = {
            "parameters": parameters,
            "gradients": int(parameters * min(1.0, back * 1.2)),
            "optimizer": parameters * 6,
            "activations": int(num_layers * 34 * TOKENS * HIDDEN // DP * (done - min(1.0, back * 1.2))),
            "temporaries": operator["traffic_bytes_max_device"] // 2,
        }
        steps.append(
            {"index": number, "t_s": operator["start_s"] + (operator["time_s"] or 0.0), "bytes": size}
        )
    return steps


def report(num_layers: int = 8, *, measured: bool = True, unknown: bool = True) -> dict[str, Any]:
    """A report of a training step on 16 described H100; 8 layers make about 450 operators.

    With `measured`, a few operators bear a measured time, and one of them is above its roof.
    """
    operators = training_step(num_layers, unknown)
    if measured:
        matmuls = [operator for operator in operators if operator["kind"] == "Matmul"]
        for number, operator in enumerate(matmuls[:24]):
            operator["measured_s"] = operator["time_s"] * (0.8 if number == 3 else 1.15 + 0.05 * (number % 7))
    memory = memory_of(operators, num_layers)
    peak = max(memory, key=lambda step: sum(step["bytes"].values()))["bytes"]

    def total(name: str) -> int:
        return sum(operator[name] or 0 for operator in operators)

    return {
        "version": 1,
        "title": "Llama 3, training step",
        "dtorch": "0.1.0",
        "torch": "2.13.0",
        "date": "2026-01-15T12:00:00+00:00",
        "device": {
            "name": "h100-sxm",
            "peaks": PEAKS,
            "bandwidth": BANDWIDTH,
            "capacity": 80e9,
            "link": LINK,
            "source": "theoretical",
        },
        "mesh": {"shape": [DP, TP], "dim_names": ["dp", "tp"], "axis_links": ["ib-ndr", "nvlink"]},
        "total": {
            "flops": total("flops"),
            "flops_max_device": total("flops_max_device"),
            "recomputed_flops": 0,
            "bandwidth_bytes": total("bandwidth_bytes"),
            "traffic_bytes": total("traffic_bytes"),
            "communication_bytes": total("sent_bytes"),
            "communication_bytes_max_device": total("sent_bytes_max_device"),
            "time_s": operators[-1]["start_s"] + operators[-1]["time_s"],
            "peak_memory_bytes": sum(peak.values()),
            "kernels": total("kernels"),
            "unknown": sum(not operator["known"] for operator in operators),
        },
        "operators": operators,
        "memory": memory,
        "memory_peak_holders": [
            {"what": what, "category": kind, "module": module, "bytes": int(share * sum(peak.values()))}
            for what, kind, module, share in (
                ("Lerp([4096, 4096])", "optimizer", "model.layers.0", 0.41),
                ("Matmul([8192, 14336])", "activations", "model.layers.0.mlp.up_proj", 0.22),
                ("Matmul([8192, 128256])", "activations", "lm_head", 0.06),
                ("model.embed_tokens.weight", "parameters", "model.embed_tokens", 0.05),
            )
        ],
        "unknown": [{"describe": "General(<b>nonzero</b>)", "count": 1}] if unknown else [],
    }
