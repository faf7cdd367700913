"""The price of every operator class, for each device of a mesh, on the calls that the samples make."""

import functools
import random
import warnings
import zlib

import pytest
import torch

from dtorch import DeviceMesh, Graph
from dtorch.layout import Layout
from dtorch.op.param import fill
from dtorch.testing import Call
from dtorch.testing.engine import distributed
from dtorch.testing.samples import calls_by_operator
from tests.op.test_priced import check_operator
from tests.support import cases, sample

MESH = DeviceMesh("cpu", [0, 1, 2])


@functools.cache
def calls() -> dict[str, list[Call]]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch has advice for some samples
        return calls_by_operator()


# Of which values decide how much is to be done.
UNKNOWN = {"aten.linalg_matrix_exp"}


@pytest.mark.filterwarnings("ignore::UserWarning")
@pytest.mark.parametrize("name", sample(calls(), 150))
def test_each_device_has_a_price_and_they_add_up(name: str) -> None:
    found = calls()[name]
    draw = random.Random(zlib.crc32(name.encode()))
    for _ in range(cases(3)):
        call = draw.choice(found)
        layouts = [None if x is None else layout(x, draw) for x in call.inputs]
        generator = torch.Generator().manual_seed(0)
        tensors = [
            None if x is None else distributed(x, lay, MESH, generator)
            for x, lay in zip(call.inputs, layouts, strict=True)
        ]
        written = [x.clone() if i in call.written else x for i, x in enumerate(tensors)]
        param = call.param
        with torch.no_grad(), Graph.default_graph().record() as graph:
            param.func(*fill(param.args, written), **fill(param.kwargs, written))
        for node in graph:
            price = node.operator.price()
            assert price.traffic_bytes is not None
            assert price.known or name in UNKNOWN, node.operator.describe()
            if price.known:
                check_operator(node.operator)


def layout(x: torch.Tensor, draw: random.Random) -> Layout:
    """Whole, or cut along some dim."""
    roles = ["R", *range(x.ndim)]
    role = draw.choice(roles)
    whole = Layout.replicate(MESH.shape, x.shape)
    return whole if role == "R" else whole.add_shard(0, role) or whole
