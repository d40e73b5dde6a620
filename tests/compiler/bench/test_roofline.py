import pytest

from dlmc.bench.roofline import Floor, Rates, Weights, Work, floor, work
from dlmc_runtime.manifest import Model, Profile

# 3 layers x 8 wide, 4 heads of 2 over 2 key-value heads, a vocabulary of 10: the embedding has
# 80 weights, and 1,000 weights in all leave 840 for the layers where the head has its own.
MODEL = Model(
    vocab_size=10,
    hidden_size=8,
    num_hidden_layers=3,
    num_attention_heads=4,
    num_key_value_heads=2,
    head_dim=2,
    max_position_embeddings=64,
    parameters=1000,
)
UNTIED = Weights.of(MODEL, tied=False)
TIED = Weights.of(MODEL, tied=True)
PROFILE = Profile(batch=2, block=4, cache=16, rows=3)


def test_weights_between_embedding_and_head():
    assert (UNTIED.layers, UNTIED.embedding) == (840, 80)
    assert (TIED.layers, TIED.embedding) == (920, 80)


@pytest.mark.parametrize(
    ("precision", "quantization", "expected"),
    [
        ("float32", "none", 4000),
        ("bfloat16", "none", 2000),
        ("float16", "none", 2000),
        ("float32", "int8", 840 + 160 * 4),
        ("float32", "w8a8", 840 + 160 * 4),
        ("bfloat16", "int4", 420 + 160 * 2),
    ],
)
def test_bytes_of_all_weights(precision, quantization, expected):
    assert UNTIED.bytes(precision, quantization) == expected


def test_a_tied_matrix_counts_once():
    assert TIED.bytes("float32") == 4000
    assert TIED.bytes("float32", "int8") == 920 + 80 * 4


def test_work_of_a_forward():
    needed = work(MODEL, UNTIED, PROFILE, "float32")
    layers = 2 * 840 * 8  # 8 positions
    head = 2 * 80 * 6  # 6 rows
    attention = 4 * (3 * 4 * 2) * 8 * 20  # scores and sums, 8 positions over 20
    assert needed.flops == layers + head + attention
    weights = 840 * 4 + 80 * 4
    embedded = 8 * 8 * 4
    cache = 2 * 3 * 2 * 2 * (2 * 16) * 4  # keys and values of 2 rows
    assert needed.bytes == weights + embedded + cache


def test_work_counts_every_part_in_its_own_precision():
    needed = work(MODEL, UNTIED, PROFILE, "bfloat16", "int8", "float16")
    assert needed.bytes == 840 + 80 * 2 + 64 * 2 + 768 * 2
    assert needed.flops == work(MODEL, UNTIED, PROFILE, "float32").flops


def test_a_whole_sequence_reads_no_cache():
    needed = work(MODEL, TIED, Profile(batch=1, block=4, cache=0, rows=1), "float32")
    assert needed.bytes == 920 * 4 + 80 * 4 + 4 * 8 * 4


def test_the_slower_of_arithmetic_and_reading_sets_the_floor():
    rates = Rates(flops=100.0, bandwidth=10.0, how="")
    assert floor(Work(flops=500, bytes=20), rates) == Floor(5.0, "compute")
    assert floor(Work(flops=100, bytes=20), rates) == Floor(2.0, "memory")
