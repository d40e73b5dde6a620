"""Strings of protobuf's text format."""


def quoted(text: str) -> str:
    """Return a literal that stands for ``text``; it has no line of its own to break out of.

    Raises:
        UnicodeEncodeError: the text holds lone surrogates.
    """
    return '"' + "".join(map(_literal, text.encode())) + '"'


def _literal(byte: int) -> str:
    plain = 0x20 <= byte < 0x7F and byte not in b'"\\'
    return chr(byte) if plain else f"\\{byte:03o}"
