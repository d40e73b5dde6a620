"""Between text and token ids: the tokenizer and the chat template of a bundle."""

from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Self

from dlmc_runtime import conversation
from dlmc_runtime.errors import BundleError, DlmcError, UsageError
from dlmc_runtime.manifest import TextSpec

if TYPE_CHECKING:
    from tokenizers import AddedToken, Tokenizer

    from dlmc_runtime.template import ChatTemplate

MAX_TOKENIZER_BYTES = 256 << 20
_MAX_ID = (1 << 32) - 1  # what the tokenizer library's ids can hold


class TextCodec:
    """Encodes prompts, decodes answers and renders conversations.

    Args:
        tokenizer: of the `tokenizers` library, without truncation or padding.
        template: absent for base models.
    """

    def __init__(self, tokenizer: "Tokenizer", template: "ChatTemplate | None") -> None:
        self._tokenizer, self._template = tokenizer, template

    @classmethod
    def load(cls, bundle_root: Path, spec: TextSpec) -> Self:
        """Read the files that ``spec`` names.

        Raises:
            BundleError: a file is missing, too large or not what it should be.
        """
        tokenizer = _tokenizer(bundle_root, spec.tokenizer)
        if spec.chat_template is None:
            return cls(tokenizer, None)
        from dlmc_runtime.template import MAX_TEMPLATE_BYTES, ChatTemplate

        source = _read(bundle_root, spec.chat_template, MAX_TEMPLATE_BYTES)
        variables = {"bos_token": spec.bos_token or "", "eos_token": spec.eos_token or ""}
        return cls(tokenizer, ChatTemplate(source, spec.chat_template, variables))

    @property
    def has_template(self) -> bool:
        """Whether `chat` can render a conversation."""
        return self._template is not None

    @property
    def template_source(self) -> str:
        """The Jinja text of the chat template; empty where there is none."""
        return "" if self._template is None else self._template.source

    @cached_property
    def added_tokens(self) -> Mapping[str, int]:
        """The ids of tokens that texts are searched for before anything else, special or not."""
        return {token.content: id_ for id_, token in self._added.items()}

    @cached_property
    def special_tokens(self) -> frozenset[str]:
        """The added tokens that `decode` leaves out."""
        return frozenset(token.content for token in self._added.values() if token.special)

    @cached_property
    def _added(self) -> "Mapping[int, AddedToken]":
        return dict(self._tokenizer.get_added_tokens_decoder())

    def encode(self, text: str, *, add_special_tokens: bool = False) -> list[int]:
        """Return the token ids of ``text``.

        Raises:
            UsageError: the text holds lone surrogates, as badly decoded bytes leave them.
        """
        try:
            text.encode()
        except UnicodeEncodeError as error:
            where = f"the text is not valid Unicode at character {error.start}"
            raise UsageError(where, "give it as UTF-8") from None
        # Unlike `encode`, this lets other threads run meanwhile, and takes a fraction of the time.
        (found,) = self._tokenizer.encode_batch_fast([text], add_special_tokens=add_special_tokens)
        return list(found.ids)

    def decode(self, ids: Iterable[int], *, skip_special_tokens: bool = True) -> str:
        """Return the text of ``ids``; never raises.

        Bytes that are no valid UTF-8, such as half a character at the end of a block, become
        U+FFFD, and ids the tokenizer does not know are left out.
        """
        known = [int(token) for token in ids if 0 <= token <= _MAX_ID]
        return str(self._tokenizer.decode(known, skip_special_tokens=skip_special_tokens))

    def decode_each(self, rows: Sequence[Sequence[int]]) -> list[str]:
        """Return the texts of many rows of ids, without special tokens."""
        return list(self._tokenizer.decode_batch([list(ids) for ids in rows]))

    def vocabulary(self) -> dict[str, int]:
        """Return the ids of all tokens, added ones too, by how the tokenizer writes them."""
        return dict(self._tokenizer.get_vocab(with_added_tokens=True))

    def describe(self) -> str:
        """Return the tokenizer as JSON, as its file describes it."""
        return str(self._tokenizer.to_str())

    def token(self, token: int) -> str:
        """Return one token as a reader sees it, special tokens by name."""
        return self.decode((token,), skip_special_tokens=False)

    @property
    def template_reads(self) -> frozenset[str]:
        """The variables that the chat template looks at; what else is given has no effect."""
        return frozenset() if self._template is None else self._template.reads

    def chat(
        self,
        messages: Sequence[Mapping[str, object]],
        *,
        tools: Sequence[Mapping[str, object]] | None = None,
        add_generation_prompt: bool = True,
        **variables: object,
    ) -> str:
        """Render a conversation into a prompt, as Hugging Face's ``apply_chat_template`` does.

        Special tokens that someone wrote into a message are special tokens of the prompt, as they
        are there: texts of strangers are to be searched for them first.

        Args:
            messages: the conversation: ``{"role": …, "content": …}``, as `conversation.messages`
                says.
            tools: functions that the model may call, as `conversation.tools` says.
            add_generation_prompt: end with the opening of the assistant's turn.
            variables: what else this template reads, for instance ``enable_thinking``.

        Raises:
            UsageError: messages, tools or variables have another form.
            RequestError: a part of a message is no text.
            DlmcError: there is no template, or it fails or refuses the messages.
        """
        if self._template is None:
            raise DlmcError("this bundle has no chat template", "give the prompt as plain text")
        return self._template.render(
            conversation.messages(messages),
            tools=conversation.tools(tools),
            add_generation_prompt=add_generation_prompt,
            **conversation.variables(variables),
        )


def _tokenizer(root: Path, name: str) -> "Tokenizer":
    """Load ``tokenizer.json`` so that it encodes a text whole, whatever the file asks for."""
    text = _read(root, name, MAX_TOKENIZER_BYTES)
    from tokenizers import Tokenizer

    try:
        tokenizer = Tokenizer.from_str(text)
    except Exception as error:  # noqa: BLE001  (the library raises nothing narrower)
        problem = f"{name} is not a tokenizer ({error})"
        raise BundleError(problem, "export the checkpoint again") from None
    tokenizer.no_truncation()
    tokenizer.no_padding()
    return tokenizer


def _read(root: Path, name: str, limit: int) -> str:
    """Read a UTF-8 file of the bundle of at most ``limit`` bytes."""
    hint = "export the checkpoint again"
    try:
        with (root / name).open("rb") as file:
            data = file.read(limit + 1)
    except OSError as error:
        problem = f"{name} cannot be read ({error.strerror})"
        raise BundleError(problem, hint) from None
    if len(data) > limit:
        raise BundleError(f"{name} is larger than {limit} bytes", hint)
    try:
        return data.decode()
    except UnicodeDecodeError as error:
        raise BundleError(f"{name} is not UTF-8 at byte {error.start}", hint) from None
