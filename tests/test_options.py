"""Options: what environment variables may say, and SdpaOption."""

import pickle

import pytest
import torch

from dtorch.errors import OptionError
from dtorch.options import GlobalOption, SdpaOption

EAGER = "DTORCH_EAGER"
SAME = "DTORCH_DTENSOR_IN_SAME_DEVICE"
COUNT = "DTORCH_NUM_GPU_WHEN_ENABLE_DTENSOR_IN_SAME_DEVICE"

FLAGS = [(EAGER, GlobalOption.get_eager), (SAME, GlobalOption.get_dtensor_in_same_device)]


@pytest.fixture(autouse=True)
def _clean_environment(monkeypatch):
    for variable in (EAGER, SAME, COUNT):
        monkeypatch.delenv(variable, raising=False)


def test_defaults():
    assert GlobalOption.get_eager() is False
    assert GlobalOption.get_dtensor_in_same_device() is False
    assert GlobalOption.get_num_gpu_when_enable_dtensor_in_same_device() == 8


@pytest.mark.parametrize(("variable", "get"), FLAGS)
@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("1", True),
        ("true", True),
        ("ON", True),
        (" Yes ", True),
        ("0", False),
        ("False", False),
        ("off", False),
    ]
    + [("no", False), ("", False), ("  ", False)],
)
def test_flag(monkeypatch, variable, get, text, value):
    monkeypatch.setenv(variable, text)
    assert get() is value


@pytest.mark.parametrize(("variable", "get"), FLAGS)
@pytest.mark.parametrize("text", ["2", "-1", "y", "eager"])
def test_bad_flag(monkeypatch, variable, get, text):
    monkeypatch.setenv(variable, text)
    with pytest.raises(OptionError) as caught:
        get()
    assert str(caught.value) == f"{variable}={text!r}: write 1 or 0"


def test_one_flag_does_not_set_the_other(monkeypatch):
    monkeypatch.setenv(EAGER, "1")
    assert not GlobalOption.get_dtensor_in_same_device()


@pytest.mark.parametrize(("text", "value"), [("1", 1), ("16", 16), (" 4 ", 4), ("", 8)])
def test_count(monkeypatch, text, value):
    monkeypatch.setenv(COUNT, text)
    assert GlobalOption.get_num_gpu_when_enable_dtensor_in_same_device() == value


@pytest.mark.parametrize("text", ["0", "-2", "2.5", "eight", "\u0664"])
def test_bad_count(monkeypatch, text):
    monkeypatch.setenv(COUNT, text)
    with pytest.raises(OptionError, match=rf"{COUNT}='{text}': write a whole number above 0"):
        GlobalOption.get_num_gpu_when_enable_dtensor_in_same_device()


@pytest.mark.parametrize(
    ("present", "same", "count", "usable"),
    [(0, "0", "8", 0), (2, "0", "8", 2), (2, "1", "8", 8), (1, "1", "4", 4), (0, "1", "8", 0)],
)
def test_num_gpu(monkeypatch, present, same, count, usable):
    monkeypatch.setattr(torch.cuda, "device_count", lambda: present)
    monkeypatch.setenv(SAME, same)
    monkeypatch.setenv(COUNT, count)
    assert GlobalOption.get_num_gpu() == usable


def test_sdpa_option():
    option = SdpaOption()
    assert (option.ulysess_cp_dim, option.ring_cp_dim) == ("ulysess_cp", "ring_cp")
    assert SdpaOption("a", ring_cp_dim="b") == pickle.loads(pickle.dumps(SdpaOption("a", "b"))) != option
    assert len({option, SdpaOption(), SdpaOption("a", "b")}) == 2


@pytest.mark.parametrize(
    ("names", "text"),
    [
        (("", "b"), "ulysess_cp_dim must be the name of a mesh axis, got ''"),
        (("a", None), "ring_cp_dim must be the name of a mesh axis, got None"),
        ((0, "b"), "ulysess_cp_dim must be the name of a mesh axis, got 0"),
        (("cp", "cp"), "ulysess_cp_dim and ring_cp_dim are both 'cp'"),
    ],
)
def test_bad_sdpa_option(names, text):
    with pytest.raises(OptionError, match=text):
        SdpaOption(*names)
