"""How placement tables of operator files speak of one call each, for tests/ops/test_docs_table.py."""

from collections.abc import Mapping
from types import MappingProxyType
from typing import NamedTuple

import torch

import dtorch.ops.fused  # noqa: F401  (which makes torch.ops.dtorch)
from dtorch.testing import Call
from dtorch.testing.samples import Values

aten = torch.ops.aten


class Table(NamedTuple):
    """One call, and how a table speaks of it.

    Attributes:
        file: the operator file.
        call: the call whose rules are compared.
        columns: `x[m k], w[k n] -> y[m n]`: header words of inputs and outputs in the call's order, dims
            named as the table names them; a column used for several tensors is written once for each.
        names: a table's name for several dims: {"d": "m n"}.
        leave_out: parts of rows that are about other calls.
        where: a remark -> names that hold in its rows: {"d is kept": {"d": "m"}}.
    """

    file: str
    call: Call
    columns: str
    names: Mapping[str, str] = MappingProxyType({})
    leave_out: tuple[str, ...] = ()
    where: Mapping[str, dict[str, str]] = MappingProxyType({})


# For a call that reduces b of [a b].
KEPT_OR_NOT = {"d is kept": {"d": "a"}, "d is reduced": {"d": "b"}, "d is summed": {"d": "b"}}


def made() -> list[Table]:
    r = Values().constant
    ids = Values().ints(7, 4, 3)
    call, conv = Call.of, aten.convolution.default
    fused = torch.ops.dtorch
    return [
        Table("matmul.py", call(aten.mm.default, r(4, 5), r(5, 7)), "x[m k], w[k n] -> y[m n]"),
        Table(
            "apply_rotary_emb.py",
            call(fused.apply_rotary_emb.default, r(4, 3, 5, 8), r(5, 8), r(5, 8)),
            "x[a b s e], cos[s e], sin[s e] -> y[a b s e]",
            {"d": "s e"},
            where={"broadcast along d": {"d": "a b"}},
        ),
        Table(
            "silu_linear_chunk.py",
            call(fused.silu_linear_chunk.default, r(4, 5), r(7, 5), r(7), 1),
            "emb[b i], w[o i], bias[o] -> y[b o]",
        ),
        Table(
            "layer_norm_mul_add.py",
            call(fused.layer_norm_mul_add.default, r(4, 3, 5), r(4, 5), r(4, 5), [5], 1e-5, r(5), r(5)),
            "x[b s n], scale[b n], shift[b n], weight[n], bias[n] -> y[b s n]",
        ),
        Table(
            "pointwise.py",
            call(aten.sigmoid_backward.default, r(4, 5), r(4, 5)),
            "x1[a b], x2[a b] -> y[a b]",
            {"d": "a b"},
            ("where x2 has size 1",),
        ),
        Table(
            "pointwise.py",
            call(aten.atan2.default, r(4, 5), r(5)),
            "x1[a b], x2[b] -> y[a b]",
            {"d": "a b"},
            ("a backward",),
            {"or no d": {"d": "a"}},
        ),
        Table("softmax.py", call(aten._softmax.default, r(4, 5), 1, False), "x[a b] -> y[a b]", {"d": "a b"}),
        Table(
            "softmax.py",
            call(aten._softmax_backward_data.default, r(4, 5), r(4, 5).softmax(1), 1, torch.float64),
            "dy[a b], y[a b] -> dx[a b]",
            {"d": "a b"},
        ),
        Table(
            "logsumexp.py", call(aten.logsumexp.default, r(4, 5), [1]), "x[a b] -> y[a]", where=KEPT_OR_NOT
        ),
        Table(
            "vector_norm.py",
            call(aten.linalg_vector_norm.default, r(4, 5), 2, [1]),
            "x[a b] -> y[a]",
            where=KEPT_OR_NOT,
        ),
        Table("variance.py", call(aten.var.correction, r(4, 5), [1]), "x[a b] -> y[a]", where=KEPT_OR_NOT),
        Table("max_min.py", call(aten.amax.default, r(4, 5), [1]), "x[a b] -> y[a]", where=KEPT_OR_NOT),
        Table(
            "arg_max.py", call(aten.max.dim, r(4, 5), 1), "x[a b] -> values[a], indices[a]", where=KEPT_OR_NOT
        ),
        Table("reduce.py", call(aten.sum.dim_IntList, r(4, 5), [1]), "x[a b] -> y[a]", where=KEPT_OR_NOT),
        Table(
            "embedding.py",
            call(aten.embedding.default, r(7, 5), ids),
            "w[v e], ids[a c] -> y[a c e]",
            {"b": "a c"},
        ),
        Table(
            "embedding.py",
            call(aten.embedding_dense_backward.default, r(4, 3, 5), ids, 7, -1, False),
            "dy[a c e], ids[a c] -> dw[v e]",
            {"b": "a c"},
        ),
        Table(
            "gather.py",
            call(aten.index_select.default, r(6, 5), 0, Values().ints(6, 3)),
            "x[d e], i[b] -> y[b e]",
        ),
        Table(
            "concat.py",
            call(aten.cat.default, [r(4, 5), r(4, 3)], 1),
            "every x[e d], every x[e d2] -> y[e d]",
            {},
            ("all cut alike", "all others empty"),
        ),
        Table("rearrange.py", call(aten.flip.default, r(4, 5), [0]), "x[a b] -> y[a b]", {"d": "a b"}),
        Table(
            "linear.py",
            call(aten.linear.default, r(3, 4, 5), r(7, 5), r(7)),
            "x[a c i], w[0 1], b[0] -> y[a c o]",
            {"d": "a c"},
        ),
        Table(
            "copy.py",
            call(aten.copy_.default, r(4, 5), r(4, 5)),
            "x[a b], y[a b] -> x after[a b]",
            {"d": "a b"},
            ("where y has size 1",),
        ),
        Table(
            "conv.py",
            call(conv, r(4, 3, 7, 5), r(2, 3, 3, 2), r(2), [1, 1], [0, 0], [1, 1], False, [0, 0], 1),
            "x[n i h v], w[o i k l], b[o] -> y[n o h v]",
            {"s": "h v"},
            ("groups",),
        ),
        Table(
            "conv.py",
            call(
                aten.convolution_backward.default,
                *(r(4, 2, 5, 4), r(4, 3, 7, 5), r(2, 3, 3, 2), [2]),
                *([1, 1], [0, 0], [1, 1], False, [0, 0], 1, [True, True, True]),
            ),
            "dy[n o h v], x[n i h v], w[o i k l] -> dx[n i h v], dw[o i k l], db[o]",
            {"s": "h v"},
            ("groups",),
        ),
        Table(
            "pooling.py",
            call(aten.avg_pool2d.default, r(4, 3, 5, 6), [2, 2]),
            "x[n c h v] -> y[n c h v]",
            {"d": "n c", "s": "h v"},
        ),
        Table(
            "pooling.py",
            call(aten._adaptive_avg_pool2d_backward.default, r(4, 3, 1, 2), r(4, 3, 5, 6)),
            "dy[n c h v], x[n c h v] -> dx[n c h v]",
            {"d": "n c", "s": "h v"},
        ),
        Table(
            "interpolate.py",
            call(aten.upsample_nearest1d.default, r(4, 3, 5), [7]),
            "x[n c s] -> y[n c s]",
            {"d": "n c"},
        ),
        Table(
            "interpolate.py",
            call(aten.upsample_nearest1d_backward.default, r(4, 3, 7), [7], [4, 3, 5]),
            "dy[n c s] -> dx[n c s]",
            {"d": "n c"},
        ),
        Table(
            "interpolate.py",
            call(aten.grid_sampler_2d.default, r(4, 3, 5, 6), r(4, 7, 8, 2), 0, 0, False),
            "input[n c h v], grid[n t u k] -> output[n c t u]",
            {"t": "t u"},
        ),
        Table(
            "interpolate.py",
            call(
                aten.grid_sampler_2d_backward.default,
                *(r(4, 3, 7, 8), r(4, 3, 5, 6), r(4, 7, 8, 2), 0, 0, False, [True, True]),
            ),
            "dout[n c t u], input[n c h v], grid[n t u k] -> dinput[n c h v], dgrid[n t u k]",
            {"t": "t u"},
        ),
        Table("outer.py", call(aten.outer.default, r(4), r(5)), "x[m], z[n] -> y[m n]"),
        Table(
            "einsum.py",
            call(aten._trilinear.default, r(4, 5), r(7, 5, 3), r(4, 3), [1, 3], [0], [1, 2], [2, 3]),
            "x[b i], w[o i j], z[b j] -> y[b o]",
        ),
        Table("scan.py", call(aten.cumsum.default, r(4, 5), 1), "x[a b] -> y[a b]", {"d": "a b"}),
        Table(
            "sort.py",
            call(aten.searchsorted.Tensor, r(4, 5).sort().values, r(4, 3)),
            "s[b d], v[b m] -> i[b m]",
        ),
        Table("sort.py", call(aten.topk.default, r(4, 5), 2), "x[e d] -> y[e k], y[e k]"),
        Table("linalg.py", call(aten.linalg_matrix_exp.default, r(4, 3, 3)), "x[d m n] -> y[d m n]"),
        Table("fft.py", call(aten._fft_r2c.default, r(4, 5), [1], 0, False), "x[e t] -> y[e t]"),
        Table(
            "spatial.py",
            call(aten.reflection_pad1d.default, r(4, 3, 5), [1, 2]),
            "x[n c s] -> y[n c s]",
            {"d": "n c"},
        ),
        Table(
            "spatial.py",
            call(aten.reflection_pad1d_backward.default, r(4, 3, 8), r(4, 3, 5), [1, 2]),
            "dy[n c s], x[n c s] -> dx[n c s]",
            {"d": "n c"},
        ),
        Table("activation.py", call(aten.hardswish.default, r(4, 5)), "x[a b] -> y[a b]", {"e": "a b"}),
        Table(
            "activation.py",
            call(aten.hardswish_backward.default, r(4, 5), r(4, 5)),
            "dy[a b], x[a b] -> dx[a b]",
            {"e": "a b"},
        ),
        Table(
            "dropout.py",
            call(aten.native_dropout_backward.default, r(4, 5), Values().mask(4, 5), 2.0),
            "dy[a b], mask[a b] -> dx[a b]",
            {"d": "a b"},
        ),
        Table("renorm.py", call(aten.renorm.default, r(4, 5), 2, 0, 0.5), "x[d e] -> y[d e]"),
        Table(
            "cross.py",
            call(aten.linalg_cross.default, r(4, 3), r(4, 3)),
            "x1[e d], x2[e d] -> y[e d]",
            leave_out=("where x2 has size 1",),
        ),
    ]


TABLES = made()
