"""A tokenizer for checkpoints that have none: one token a byte, at ids that leave others free."""

from collections.abc import Mapping

from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

BYTES = 256

CHAT_TEMPLATE = (
    "{% for message in messages %}{{ message['role'] }}: {{ message['content'] }}\n{% endfor %}"
    "{% if add_generation_prompt %}assistant: {% endif %}"
)


def byte_tokenizer(vocab_size: int, special: Mapping[int, str]) -> Tokenizer:
    """Return a byte-level tokenizer in which every id below ``vocab_size`` has a text.

    Args:
        vocab_size: at least 256 more than there are special tokens.
        special: text of each special token, by id.
    """
    alphabet = iter(sorted(pre_tokenizers.ByteLevel.alphabet()))
    free = (token for token in range(vocab_size) if token not in special)
    texts = dict(special) | {token: next(alphabet, f"<|reserved_{token}|>") for token in free}
    tokenizer = Tokenizer(
        models.BPE(vocab={text: token for token, text in texts.items()}, merges=[])
    )
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken(text, special=True) for text in special.values()])
    return tokenizer
