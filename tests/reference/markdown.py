"""Small pieces of Markdown."""

from collections.abc import Iterable, Iterator, Sequence


def table(columns: Sequence[str], rows: Iterable[Sequence[str]]) -> Iterator[str]:
    yield f"| {' | '.join(columns)} |"
    yield "|" + "---|" * len(columns)
    yield from (f"| {' | '.join(cell(each) for each in row)} |" for row in rows)


def cell(text: str) -> str:
    """One line, in which a bar is not the end of the cell."""
    return " ".join(text.split()).replace("|", "\\|")


def sentence(text: str) -> str:
    """Begin with a capital letter and end with a full stop."""
    text = " ".join(text.split())
    capital = text[:1].upper() + text[1:]
    return capital if not capital or capital.endswith((".", "!", "?")) else f"{capital}."
