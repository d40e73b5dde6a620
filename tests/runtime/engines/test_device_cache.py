import gc

import numpy as np
import pytest
from fake_cuda import Cuda

from dlmc_runtime.cache import HostCache, cache_names
from dlmc_runtime.engines.base import Store
from dlmc_runtime.engines.cuda import CudaDevice
from dlmc_runtime.engines.device_cache import CachePool
from dlmc_runtime.engines.memory import HostDevice
from dlmc_runtime.errors import EngineError
from dlmc_runtime.manifest import LayerCache, Model

MODEL = Model(
    vocab_size=8,
    hidden_size=6,
    num_hidden_layers=2,
    num_attention_heads=4,
    num_key_value_heads=2,
    head_dim=3,
    max_position_embeddings=32,
    parameters=1,
)


@pytest.fixture(params=["cpu", "cuda"])
def device(request, monkeypatch):
    cuda = Cuda()
    monkeypatch.setattr("dlmc_runtime.engines.cuda._library", lambda: cuda)
    made = HostDevice() if request.param == "cpu" else CudaDevice()
    yield made
    made.close()


@pytest.fixture
def pool(device):
    return made(device)


def made(device, dtype="float32", forget=lambda memory: None):
    return CachePool(device, MODEL, dtype, forget)


def present(device, dtype, block, seed):
    """Put [B,H_kv,T,D] for every tensor on the device; return it and where it lies."""
    values = np.random.default_rng(seed).standard_normal((4, 3, 2, block, 3))
    stored = values.astype(np.float16 if dtype == "float16" else np.float32)
    staged = device.staging(stored.nbytes)
    staged.view(stored.dtype)[:] = stored.reshape(-1)
    address = device.allocate(stored.nbytes)
    device.upload(address, staged)
    device.synchronize()
    each = stored[0].nbytes
    return list(stored), [(address + index * each, block) for index in range(4)]


MOVES = (
    [Store(1, 3)],
    [Store(0, 2), Store(1, 4)],
    [Store(2, 1)],
    [Store(1, 4, at=2), Store(0, 3, at=0)],
)


@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_stores_do_what_they_do_on_the_host(device, dtype):
    cache = made(device, dtype).take(3, 7)
    host = HostCache(MODEL, 3, 7, dtype)
    for seed, stores in enumerate(MOVES):
        values, places = present(device, dtype, 4, seed)
        cache.queue_copies(stores, places)
        device.synchronize()
        cache.stored(stores)
        for store in stores:
            host.write(store.row, store.count, values, store.at)
    assert cache.filled.tolist() == [3, 6, 1] == host.filled.tolist()
    found, wanted = cache.contents(), host.contents()
    assert list(found.past) == cache_names(MODEL)
    for name, array in wanted.past.items():
        assert found.past[name].dtype == np.float32
        np.testing.assert_array_equal(found.past[name], array)


def test_layers_that_keep_the_last_positions_turn_over_as_on_the_host(device):
    layers = (LayerCache(key_value_heads=2, head_dim=3, window=5), *MODEL.caches[1:])
    model = MODEL.model_copy(update={"layers": layers})
    cache = CachePool(device, model, "float32", lambda memory: None).take(3, 14)
    host = HostCache(model, 3, 14)
    for seed, stores in enumerate([[Store(1, 3)], [Store(1, 4)], [Store(1, 7), Store(0, 6)]]):
        values, places = present(device, "float32", 7, seed)
        cache.queue_copies(stores, places)
        device.synchronize()
        cache.stored(stores)
        for store in stores:
            host.write(store.row, store.count, values, store.at)
    assert [array.shape[2] for array in host.past.values()] == [5, 5, 14, 14]
    for name, array in host.contents().past.items():
        np.testing.assert_array_equal(cache.contents().past[name], array)


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
def test_contents_come_back_as_the_type_rounds_them(device, dtype):
    host = HostCache(MODEL, 2, 5, dtype)
    rng = np.random.default_rng(0)
    before = host.contents()
    for array in before.past.values():
        array[...] = rng.standard_normal(array.shape)
    before.filled[...] = [3, 5]
    host.restore(before)
    cache = made(device, dtype).take(2, 5)
    cache.restore(before)
    after, wanted = cache.contents(), host.contents()
    assert after.filled.tolist() == [3, 5]
    assert after.size == 5
    for name, array in wanted.past.items():
        np.testing.assert_array_equal(after.past[name], array)


def test_a_copy_of_contents_is_not_the_cache(pool):
    cache = pool.take(1, 2)
    contents = cache.contents()
    contents.filled[:] = 2
    assert cache.filled.tolist() == [0]


def test_memory_goes_to_the_next_cache_of_its_shape_empty(pool):
    first = pool.take(2, 4)
    contents = first.contents()
    for array in contents.past.values():
        array[:] = np.nan
    first.restore(contents)
    address = first.memory.address
    del first
    gc.collect()
    other, again = pool.take(2, 5), pool.take(2, 4)
    assert again.memory.address == address != other.memory.address
    assert not any(array.any() for array in again.contents().past.values())
    assert pool.idle == []


def test_idle_memory_is_freed_where_there_is_no_other(device, monkeypatch):
    forgotten: list = []
    pool = made(device, forget=forgotten.append)
    first, second = pool.take(1, 4), pool.take(1, 4)
    allocate = device.allocate
    full: list = []

    def scarce(size):
        if not full:
            full.append(size)
            raise MemoryError
        return allocate(size)

    monkeypatch.setattr(device, "allocate", scarce)
    with pytest.raises(MemoryError):
        pool.take(2, 4)  # nothing is idle
    full.clear()
    memory = first.memory
    del first
    gc.collect()
    assert pool.take(2, 4).memory.batch == 2
    assert forgotten == [memory]
    assert second.contents().size == 4


def test_an_empty_cache_has_an_address_for_every_tensor(pool):
    cache = pool.take(2, 0)
    assert len(set(cache.memory.addresses.values())) == 4
    assert cache.contents().size == 0
    with pytest.raises(ValueError, match="row 1: 1 positions at 0 do not fit into 0"):
        cache.queue_copies([Store(1, 1)], [(0, 4)] * 4)


def test_a_closed_pool_says_so(pool):
    cache = pool.take(1, 2)
    pool.close()
    for use in (cache.contents, lambda: cache.restore(None), lambda: pool.take(1, 2)):
        with pytest.raises(EngineError, match="was closed"):
            use()


def both(device, dtype="float32", filled=(9, 5, 0), size=14, window=6):
    """Return a cache on the device and one on the host that hold the same; one layer is a ring."""
    ring = LayerCache(key_value_heads=2, head_dim=3, window=window)
    model = MODEL.model_copy(update={"layers": (ring, *MODEL.caches[1:])})
    pool = CachePool(device, model, dtype, lambda memory: None)
    cache, host = pool.take(3, size), HostCache(model, 3, size, dtype)
    values, places = present(device, dtype, 9, 0)
    for row, count in enumerate(filled):
        if count:
            cache.queue_copies([Store(row, count)], places)
            device.synchronize()
            cache.stored([Store(row, count)])
            host.write(row, count, values)
    return cache, host


def assert_equal(cache, host):
    assert cache.filled.tolist() == host.filled.tolist()
    wanted = host.contents().past
    for name, array in cache.contents().past.items():
        np.testing.assert_array_equal(array, wanted[name], err_msg=name)


@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_rows_are_moved_and_cleared_as_on_the_host(device, dtype):
    cache, host = both(device, dtype)
    assert_equal(cache, host)
    for source, target in ((1, 2), (0, 1), (2, 0)):
        cache.move(source, target)
        host.move(source, target)
        assert_equal(cache, host)
    cache.clear(1)
    host.clear(1)
    assert_equal(cache, host)


@pytest.mark.parametrize("dtype", ["float32", "float16"])
@pytest.mark.parametrize("row", [0, 1])
def test_rows_are_saved_and_loaded_as_on_the_host(device, dtype, row):
    cache, host = both(device, dtype)
    end = int(host.filled[row])
    spans = [(0, 2), (2, 4), (4, end)]
    saved = [cache.save(row, *span) for span in spans]
    wanted = [host.save(row, *span) for span in spans]
    assert [(one.start, one.end) for one in saved] == spans
    assert [one.whole for one in saved] == [one.whole for one in wanted] == [False, False, True]
    assert all(one.nbytes >= other.nbytes for one, other in zip(saved, wanted, strict=True))
    cache.clear(row)
    host.clear(row)
    cache.load(2, saved)
    host.load(2, wanted)
    assert_equal(cache, host)
    assert cache.filled[2] == end


def test_what_is_saved_may_go_to_a_cache_of_another_size(device):
    cache, host = both(device)
    saved, wanted = [cache.save(0, 0, 9)], [host.save(0, 0, 9)]
    larger, other = both(device, filled=(0, 0, 0), size=20)
    larger.load(1, saved)
    other.load(1, wanted)
    assert_equal(larger, other)


def test_an_empty_cache_can_be_moved_and_cleared(pool):
    cache = pool.take(2, 0)
    cache.move(1, 0)
    cache.clear(0)
    assert cache.filled.tolist() == [0, 0]


def test_memory_of_what_is_saved_goes_with_it(pool, monkeypatch):
    cache, freed, free = pool.take(2, 8), [], pool.device.free

    def note(address):
        freed.append(address)
        free(address)

    monkeypatch.setattr(pool.device, "free", note)
    cache.filled[0] = 8
    saved = cache.save(0, 0, 4)
    address = saved.address
    assert freed == []
    del saved
    gc.collect()
    assert freed == [address]
    late = cache.save(0, 4, 8)
    pool.close()  # the device takes back all there is
    del late
    gc.collect()
    assert freed == [address]


def test_what_there_is_no_memory_for_is_not_saved(pool, monkeypatch):
    cache = pool.take(1, 4)
    cache.filled[0] = 4

    def full(size):
        raise MemoryError

    monkeypatch.setattr(pool.device, "allocate", full)
    with pytest.raises(MemoryError):
        cache.save(0, 0, 4)


def test_what_another_kind_of_cache_has_saved_is_refused(device):
    cache, host = both(device)
    with pytest.raises(ValueError, match="another kind of cache"):
        cache.load(1, [host.save(0, 0, 4)])


def test_rows_of_a_closed_pool_stay_as_they_are(device):
    cache, _ = both(device)
    saved = cache.save(1, 0, 5)
    cache._pool.close()
    for use in (
        lambda: cache.move(0, 1),
        lambda: cache.clear(0),
        lambda: cache.save(0, 0, 4),
        lambda: cache.load(0, [saved]),
    ):
        with pytest.raises(EngineError, match="was closed"):
            use()
