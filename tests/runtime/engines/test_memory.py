import ctypes

import numpy as np
import pytest

from dlmc_runtime.engines.memory import ALIGNMENT, NUMPY, HostDevice, Layout, item_size


def test_tensors_lie_one_after_the_other_and_none_at_the_address_of_another():
    layout = Layout.of(
        [("a", (2, 3), "float32"), ("empty", (2, 0), "float32"), ("b", (70,), "int64")]
    )
    assert {name: place.offset for name, place in layout.places.items()} == {
        "a": 0,
        "empty": ALIGNMENT,
        "b": 2 * ALIGNMENT,
    }
    assert layout.size == (2 + 3) * ALIGNMENT
    assert layout.addresses(1 << 40)["b"] == (1 << 40) + 2 * ALIGNMENT


def test_a_tensor_is_a_view_of_its_region():
    layout = Layout.of([("ids", (2,), "int64"), ("numbers", (2, 2), "bfloat16")])
    region = np.zeros(layout.size, np.uint8)
    layout.places["numbers"].of(region)[1, 1] = 0x3F80
    assert layout.places["numbers"].of(region).dtype == np.uint16
    assert region[ALIGNMENT + 6 : ALIGNMENT + 8].tolist() == [0x80, 0x3F]
    assert not region[: ALIGNMENT + 6].any()


@pytest.mark.parametrize(
    ("dtype", "size"), [("int64", 8), ("bool", 1), ("float32", 4), ("float16", 2), ("bfloat16", 2)]
)
def test_every_type_has_its_size(dtype, size):
    assert item_size(dtype) == size
    assert set(NUMPY) >= {dtype}


def read(address, size):
    return list(ctypes.string_at(address, size))


def test_the_host_stands_in_for_a_device():
    device = HostDevice()
    address, other = device.allocate(16), device.allocate(16)
    assert address % ALIGNMENT == 0 == other % ALIGNMENT
    source = device.staging(16)
    assert not source.any()
    source[:] = np.arange(16)
    device.upload(address, source)
    assert read(address, 16) == list(range(16))
    device.zero(other, 16)
    # Two rows of two bytes, from rows of four into rows of eight.
    device.copy_rows(other + 1, 8, address + 4, 4, 2, 2)
    assert read(other, 16) == [0, 4, 5, 0, 0, 0, 0, 0, 0, 8, 9, 0, 0, 0, 0, 0]
    target = device.staging(4)
    device.download(target, address + 2)
    device.synchronize()
    assert target.tolist() == [2, 3, 4, 5]
    device.free(address)
    with pytest.raises(KeyError):
        device.free(address)
    device.close()
    device.close()
    with pytest.raises(KeyError):
        device.free(other)
