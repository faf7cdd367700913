"""docs/operators_mapping.md is what the operators are now."""

from dtorch.op import registry
from dtorch.testing import mapping
from dtorch.testing.mapping_onnx import ONNX


def test_the_page_is_not_stale() -> None:
    assert mapping.PAGE.read_text(encoding="utf-8") == mapping.page(), (
        "python -m dtorch.testing.mapping --write"
    )


def test_every_type_is_on_the_page() -> None:
    without = {name for name, operators in mapping.own_types().items() if not operators}
    assert without - mapping.DTORCH.keys() == {"General"}


def test_onnx_names_belong_to_operators_that_have_a_class() -> None:
    served = {".".join(name.split(".")[:2]) for name in registry.torch_operators()}
    assert ONNX.keys() - served == set()
