"""Llama-3 priced before anything is rented: no GPU, no weights, a few seconds.

    dtorch price examples/llama3.py --device h100-sxm --mesh dp=2,tp=8 --html out.html
    python examples/llama3.py

The model is HuggingFace's, unmodified. `build` is what `dtorch price` calls.
"""

import torch
from transformers import LlamaConfig, LlamaForCausalLM

import dtorch
from dtorch import Replicate, Shard

BATCH, LENGTH = 2, 4096


def config(layers: int = 32) -> LlamaConfig:
    """Llama-3-8B."""
    return LlamaConfig(
        hidden_size=4096,
        intermediate_size=14336,
        num_hidden_layers=layers,
        num_attention_heads=32,
        num_key_value_heads=8,
        vocab_size=128256,
        max_position_embeddings=8192,
        rope_theta=500000.0,
        dtype=torch.bfloat16,
    )


def build(mesh: dtorch.DeviceMesh) -> tuple[torch.nn.Module, dict[str, object]]:
    """The model laid out over the mesh, and what it is called with: token ids, cut over dp if it has that."""
    model = LlamaForCausalLM(config()).to(torch.bfloat16)
    dtorch.parallelize(model, mesh, "auto" if mesh.has_dim_name("tp") else {})
    places = [Shard(0) if name == "dp" else Replicate() for name in mesh.dim_names or ()]
    ids = dtorch.zeros(BATCH, LENGTH, dtype=torch.int64, device_mesh=mesh, placements=places)
    return model, {"input_ids": ids, "labels": ids, "use_cache": False}


def main() -> None:
    mesh = dtorch.described_mesh(
        "h100-sxm", (2, 8), axis_links=("ib-ndr", "nvlink"), mesh_dim_names=("dp", "tp")
    )
    with dtorch.dry_run(mesh):
        model, arguments = build(mesh)
    report = dtorch.price(model, optimizer="adamw", title="Llama-3-8B, a training step", **arguments)
    print(f"{report.title} on {mesh}, {report.roof.source} roof")
    print(f"  {report.flops / 1e12:.1f} TFLOP, {report.flops_max_device / 1e12:.1f} on the busiest device")
    print(f"  {report.time:.3f} s, {report.kernels} kernels a device")
    print(f"  {report.communication_bytes_max_device / 1e9:.1f} GB received by the busiest device")
    print(f"  {report.peak_memory / 1e9:.1f} GB of {report.roof.device.capacity / 1e9:.0f} GB at the peak")
    for name, sums in report.by_phase().items():
        print(f"  {name:10} {sums['time_s']:.3f} s")


if __name__ == "__main__":
    main()
