"""Megatron's GPT with tensor and sequence parallelism, in torch modules, for the published step times.

Korthikanti et al., Reducing Activation Recomputation in Large Transformer Models (2022), table 4: 22B has 48
layers, hidden 6144, 64 heads, vocabulary 51200, sequence 2048, batch 4, tp 8 on 8 x A100-80GB.
"""

import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

import dtorch
from dtorch import Replicate, Shard

DROPOUT = 0.1
PLAN = {
    "*qkv.weight": {"tp": Shard(0)},
    "*qkv.bias": {"tp": Shard(0)},
    "*up.weight": {"tp": Shard(0)},
    "*up.bias": {"tp": Shard(0)},
    "*out.weight": {"tp": Shard(1)},
    "*down.weight": {"tp": Shard(1)},
    "head.weight": {"tp": Shard(0)},
    "tokens.weight": {"tp": Shard(0)},
}


class Gather(torch.autograd.Function):
    """The whole sequence on every device: an all-gather; its gradient is reduce-scattered."""

    @staticmethod
    def forward(ctx, x):
        return x.redistribute(placements=[Replicate()])

    @staticmethod
    def backward(ctx, grad):
        return grad.redistribute(placements=[Shard(1)])


class Scatter(torch.autograd.Function):
    """Pending sums over tp, added up and cut along the sequence: a reduce-scatter, gathered back."""

    @staticmethod
    def forward(ctx, x):
        return x.redistribute(placements=[Shard(1)])

    @staticmethod
    def backward(ctx, grad):
        return grad.redistribute(placements=[Replicate()])


gather, scatter = Gather.apply, Scatter.apply


def dropout(x: torch.Tensor) -> torch.Tensor:
    """One kernel, as on a GPU."""
    return torch.native_dropout(x, DROPOUT, True)[0]


class Block(nn.Module):
    def __init__(self, hidden: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = nn.LayerNorm(hidden), nn.LayerNorm(hidden)
        # The three projections lie side by side for each head, so that a cut by heads cuts all of them.
        self.qkv = nn.Linear(hidden, 3 * hidden)
        self.out, self.out_bias = nn.Linear(hidden, hidden, bias=False), nn.Parameter(torch.empty(hidden))
        self.up, self.down = nn.Linear(hidden, 4 * hidden), nn.Linear(4 * hidden, hidden, bias=False)
        self.down_bias = nn.Parameter(torch.empty(hidden))

    def scores(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        """Attention as Megatron made it then: scores in memory, softmax with mask and scale in one kernel."""
        weights = torch.matmul(q, k.transpose(-1, -2))
        return torch.matmul(dropout(torch.softmax(weights, -1)), v)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        b, s, h = x.shape
        q, k, v = (
            part.transpose(1, 2)
            for part in self.qkv(gather(self.norm1(x))).view(b, s, self.heads, 3, h // self.heads).unbind(3)
        )
        mixed = checkpoint(self.scores, q, k, v, use_reentrant=False)
        attended = scatter(self.out(mixed.transpose(1, 2).reshape(b, s, h)))
        x = x + dropout(attended + self.out_bias)
        fed = scatter(self.down(F.gelu(self.up(gather(self.norm2(x))))))
        return x + dropout(fed + self.down_bias)


class GPT(nn.Module):
    def __init__(self, layers: int, hidden: int, heads: int, vocabulary: int, length: int) -> None:
        super().__init__()
        self.tokens = nn.Embedding(vocabulary, hidden)
        self.positions = nn.Parameter(torch.empty(length, hidden))
        self.blocks = nn.ModuleList(Block(hidden, heads) for _ in range(layers))
        self.norm = nn.LayerNorm(hidden)
        self.head = nn.Linear(hidden, vocabulary, bias=False)

    def forward(self, ids: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        x = scatter(self.tokens(ids)) + self.positions
        x = dropout(x)
        for block in self.blocks:
            x = block(x)
        logits = self.head(gather(self.norm(x)))
        return F.cross_entropy(logits.flatten(0, 1).float(), labels.flatten())


def report(
    device: str, layers: int, hidden: int, heads: int, vocabulary: int, length: int, batch: int, tp: int
):
    """The price of a training step."""
    mesh = dtorch.described_mesh(device, (tp,), mesh_dim_names=("tp",))
    with dtorch.dry_run(mesh):
        model = GPT(layers, hidden, heads, vocabulary, length).to(torch.bfloat16)
        dtorch.parallelize(model, mesh, PLAN)
        ids = torch.zeros(batch, length, dtype=torch.int64)
    adam = lambda parameters: torch.optim.AdamW(parameters, fused=True)  # noqa: E731
    return dtorch.price(model, ids, ids, optimizer=adam, title="Megatron GPT")
