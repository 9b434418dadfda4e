"""Validation of names."""


def is_plain(text: str) -> bool:
    """Whether the text is one line of visible characters and spaces, without control or direction characters."""
    return text.isprintable()
