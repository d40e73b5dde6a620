import handmade
import pytest

from dlmc.targets.profiles import ProfileRequest, choose
from dlmc_runtime.bundle import Bundle
from dlmc_runtime.errors import UsageError
from dlmc_runtime.manifest import Profile


def profile(batch, block, cache, rows):
    return Profile(batch=batch, block=block, cache=cache, rows=rows)


OWN = {
    "full": (profile(1, 48, 0, 4), profile(1, 64, 0, 4)),
    "block": (profile(1, 4, 32, 4), profile(1, 16, 32, 1)),
}


@pytest.fixture(scope="module")
def manifest(tmp_path_factory):
    """Return a manifest of blocks of 4 and 64 positions."""

    def make(regime):
        root = tmp_path_factory.mktemp("profiles") / "bundle"
        attention = {"regime": regime, "block_length": 4}
        handmade.write(root, attention=attention, profiles=OWN[regime])
        return Bundle.open(root).manifest

    return make


@pytest.mark.parametrize("regime", OWN)
def test_without_a_request_the_manifest_decides(manifest, regime):
    assert choose(manifest(regime), ProfileRequest()) == OWN[regime]


def test_a_family_with_a_cache_gets_a_profile_to_denoise_and_one_to_prefill(manifest):
    made = manifest("block")
    assert choose(made, ProfileRequest(cache=48)) == (profile(1, 4, 48, 4), profile(1, 16, 48, 1))
    assert choose(made, ProfileRequest(batch=(2, 1, 2), prefill=8)) == (
        profile(1, 4, 32, 4),
        profile(1, 8, 32, 1),
        profile(2, 4, 32, 4),
        profile(2, 8, 32, 1),
    )
    assert choose(made, ProfileRequest(block=6, rows=5, prefill=6)) == (
        profile(1, 6, 32, 1),
        profile(1, 6, 32, 5),
    )
    assert choose(made, ProfileRequest(cache=0))[0] == profile(1, 4, 0, 4)


def test_a_family_that_sees_everything_gets_one_long_profile_a_batch(manifest):
    made = manifest("full")
    assert choose(made, ProfileRequest(batch=(1, 4))) == (
        profile(1, 64, 0, 4),
        profile(4, 64, 0, 4),
    )
    assert choose(made, ProfileRequest(block=20, rows=7)) == (profile(1, 20, 0, 7),)
    assert choose(made, ProfileRequest(block=3)) == (profile(1, 3, 0, 3),)


@pytest.mark.parametrize(
    ("regime", "request_", "message"),
    [
        ("full", {"cache": 8}, "--cache is 8"),
        ("full", {"prefill": 8}, "--prefill makes no sense for handmade"),
        ("full", {"block": 8, "rows": 9}, "--rows is 9: a forward has only 8 positions"),
        ("full", {"block": 65}, "--block is 65: the model has only 64 positions"),
        ("block", {"block": 3}, "--block is 3: the model denoises 4 positions together"),
        ("block", {"prefill": 3}, "--prefill is 3: it must hold a block of 4"),
        ("block", {"rows": 5}, "--rows is 5: a forward has only 4 positions"),
        ("block", {"rows": 3}, "--rows is 3: the model denoises 4 positions together"),
        ("block", {"cache": 65}, "--cache is 65: the model has only 64 positions"),
        ("block", {"prefill": 68}, "--prefill is 68: the model has only 64 positions"),
        ("block", {"prefill": 10**30}, "the model has only 64 positions"),
        ("full", {"block": 10**30}, "the model has only 64 positions"),
        ("block", {"rows": 10**30}, "a forward has only 4 positions"),
    ],
)
def test_a_request_that_contradicts_the_family_is_refused(manifest, regime, request_, message):
    with pytest.raises(UsageError) as caught:
        choose(manifest(regime), ProfileRequest(**request_))
    assert message in str(caught.value)
    assert caught.value.hint


@pytest.mark.parametrize(
    ("request_", "message"),
    [
        ({"block": 0}, "--block is 0: it must be at least 1"),
        ({"prefill": -1}, "--prefill is -1"),
        ({"rows": 0}, "--rows is 0"),
        ({"cache": -1}, "--cache is -1: it must be at least 0"),
        ({"batch": ()}, "--batch is empty"),
        ({"batch": (1, 0)}, "--batch holds 0"),
        ({"batch": (1, 2000)}, "--batch holds 2000: use 1 to 1024"),
    ],
)
def test_sizes_that_mean_nothing_are_refused(request_, message):
    with pytest.raises(UsageError) as caught:
        ProfileRequest(**request_)
    assert message in str(caught.value)


def test_blocks_whose_tokens_choose_experts_together_are_whole(manifest):
    own = manifest("block")
    attention = own.attention.model_copy(update={"routing_block": 4})
    routed = own.model_copy(update={"attention": attention})
    assert choose(routed, ProfileRequest()) == own.profiles
    with pytest.raises(UsageError, match=r"a profile has 6 positions, but 4 consecutive .* of 4"):
        choose(routed, ProfileRequest(prefill=6))
    odd = attention.model_copy(update={"routing_block": 3})
    with pytest.raises(UsageError, match="a profile has 4 positions, but 3"):
        choose(own.model_copy(update={"attention": odd}), ProfileRequest())


def test_prompts_may_go_through_the_forward_that_denoises(manifest):
    made = manifest("block")
    (only,) = choose(made, ProfileRequest(batch=(1,), prefill=0))
    assert only.rows >= made.attention.block_length
    with pytest.raises(UsageError, match="--prefill is -1: it must be at least 0"):
        ProfileRequest(prefill=-1)
