"""Special token ids, found the same way for every family."""

from dataclasses import dataclass

from dlmc.families.keys import Keys
from dlmc.families.spec import Overrides
from dlmc_runtime.errors import CheckpointError


@dataclass(frozen=True)
class TokenIds:
    """Special token ids of a checkpoint, each below the vocabulary's size."""

    mask: int | None
    stop: tuple[int, ...]
    pad: int
    bos: int | None


def read_token_ids(
    config: Keys,
    generation: Keys,
    vocab_size: int,
    overrides: Overrides,
    default_mask: int | None = None,
    *,
    masked: bool = True,
) -> TokenIds:
    """Read the special ids; those of ``generation_config.json`` go before ``config.json``.

    ``default_mask`` is the mask id of a family whose checkpoints do not state it. A family that
    is not ``masked`` has none.

    Padding is hidden from the network, so without a pad id any id serves: a stop id, or the mask.

    Raises:
        CheckpointError: there is no mask id, an id is outside the vocabulary, or the mask also
            stops the text (it is never predicted, so the text would never stop).
    """
    if not masked and overrides.mask_id is not None:
        raise CheckpointError("this family has no mask token", "leave out --mask-id")
    mask = overrides.mask_id
    if mask is None and masked:
        mask = config.token("mask_token_id", vocab_size)
    if mask is None:
        mask = default_mask
    if mask is None and masked:
        config.refuse("'mask_token_id' is missing", "state it with --mask-id")
    stop = first_present(config, generation, "eos_token_id", vocab_size)
    if mask is not None and mask in stop:
        raise CheckpointError(
            f"token {mask} would be mask and stop token at once", "state another --mask-id"
        )
    pad = first_present(config, generation, "pad_token_id", vocab_size)
    bos = first_present(config, generation, "bos_token_id", vocab_size)
    padding = (*pad, *stop, 0 if mask is None else mask)[0]
    return TokenIds(mask, stop, padding, bos[0] if bos else None)


def first_present(config: Keys, generation: Keys, key: str, vocab_size: int) -> tuple[int, ...]:
    """Return the ids of a key in the generation's file, or else in the checkpoint's."""
    source = generation if generation.has(key) else config
    return source.tokens(key, vocab_size)
