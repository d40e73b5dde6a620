"""Tokenizers and chat templates of the tiny checkpoints.

Both are byte-level BPE without merges, so that any text has an encoding; role names are added
tokens to keep prompts short. Special tokens and templates are those of the real families.
"""

from dataclasses import dataclass

import jinja2
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

VOCAB_SIZE = 272  # 256 bytes, special tokens, role names, and room up to a multiple of 16

_LLADA_TEMPLATE = (
    "{{ bos_token }}{% for message in messages %}"
    "<|start_header_id|>{{ message['role'] }}<|end_header_id|>\n\n"
    "{{ message['content'] }}<|eot_id|>"
    "{% endfor %}{% if add_generation_prompt %}"
    "<|start_header_id|>assistant<|end_header_id|>\n\n{% endif %}"
)
_CHATML_TEMPLATE = (
    "{% for message in messages %}"
    "<|im_start|>{{ message['role'] }}\n{{ message['content'] }}<|im_end|>\n"
    "{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
_GEMMA_TEMPLATE = (
    "{{ bos_token }}{% for message in messages %}"
    "<|turn>{{ 'model' if message['role'] == 'assistant' else message['role'] }}\n"
    "{{ message['content'] }}<turn|>\n"
    "{% endfor %}{% if add_generation_prompt %}<|turn>model\n{% endif %}"
)


@dataclass(frozen=True)
class Encoded:
    """Token ids of a problem: the rendered prompt, and the answer with its end of turn."""

    prompt: list[int]
    answer: list[int]


@dataclass(frozen=True)
class Vocabulary:
    """The special tokens of one layout and the template that arranges them.

    ``mask`` is None where undecided positions hold random tokens.
    """

    special: tuple[str, ...]
    roles: tuple[str, ...]
    template: str
    mask: str | None
    end_of_turn: str
    pad: str
    bos: str | None

    def tokenizer(self) -> Tokenizer:
        """Build the `tokenizers` object."""
        alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
        vocab = {symbol: index for index, symbol in enumerate(alphabet)}
        tokenizer = Tokenizer(models.BPE(vocab=vocab, merges=[]))
        tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
        tokenizer.decoder = decoders.ByteLevel()
        tokenizer.add_special_tokens([AddedToken(text, special=True) for text in self.special])
        tokenizer.add_tokens([AddedToken(text, normalized=False) for text in self.roles])
        return tokenizer

    def prompt(self, question: str) -> str:
        """Render one user turn, ready for the answer."""
        template = jinja2.Environment(autoescape=False).from_string(self.template)  # noqa: S701
        messages = [{"role": "user", "content": question}]
        return template.render(messages=messages, bos_token=self.bos, add_generation_prompt=True)

    def tokenizer_config(self) -> dict[str, object]:
        """Return the contents of ``tokenizer_config.json``."""
        mask = {} if self.mask is None else {"mask_token": self.mask}
        return {
            "tokenizer_class": "PreTrainedTokenizerFast",
            "bos_token": self.bos,
            "eos_token": self.end_of_turn,
            "pad_token": self.pad,
            **mask,
            "model_max_length": 512,
            "clean_up_tokenization_spaces": False,
            "chat_template": self.template,
        }


LLADA = Vocabulary(
    special=(
        "<|startoftext|>",
        "<|endoftext|>",
        "<|start_header_id|>",
        "<|end_header_id|>",
        "<|eot_id|>",
        "<|mdm_mask|>",
    ),
    roles=("user", "assistant", "system", "\n\n"),
    template=_LLADA_TEMPLATE,
    mask="<|mdm_mask|>",
    end_of_turn="<|eot_id|>",
    pad="<|endoftext|>",
    bos="<|startoftext|>",
)
SDAR = Vocabulary(
    special=("<|endoftext|>", "<|im_start|>", "<|im_end|>", "<|MASK|>"),
    roles=("user", "assistant", "system"),
    template=_CHATML_TEMPLATE,
    mask="<|MASK|>",
    end_of_turn="<|im_end|>",
    pad="<|endoftext|>",
    bos=None,
)
GEMMA = Vocabulary(
    special=(
        "<pad>",
        "<eos>",
        "<bos>",
        "<|turn>",
        "<turn|>",
        "<|channel>",
        "<channel|>",
        "<|think|>",
        "<|image>",
        "<|image|>",
        "<image|>",
    ),
    roles=("user", "model", "system"),
    template=_GEMMA_TEMPLATE,
    mask=None,
    end_of_turn="<turn|>",
    pad="<pad>",
    bos="<bos>",
)
