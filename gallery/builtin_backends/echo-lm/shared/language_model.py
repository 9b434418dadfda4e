"""A word model: it learns which word follows which in a text, and continues a prompt with words of that text."""

import hashlib
import math
import re
from collections import defaultdict
from collections.abc import Iterator

_WORD = re.compile(r"\w+|[^\w\s]")
DIMENSIONS = 64


class LanguageModel:
    """The same prompt always gets the same continuation, from every replica."""

    def __init__(self, text: str) -> None:
        words = split(text)
        if not words:
            raise ValueError("the model file contains no words")
        self.size = len(words)
        self._words = sorted(set(words))
        self._followers: dict[str, list[str]] = defaultdict(list)
        for word, follower in zip(words, [*words[1:], words[0]], strict=True):
            self._followers[word].append(follower)

    def continuation(self, prompt: str, length: int) -> Iterator[str]:
        """Yield `length` words; the first follows the last word of the prompt that the model knows."""
        known = [word for word in split(prompt) if word in self._followers]
        word = known[-1] if known else self._words[_number(prompt) % len(self._words)]
        for position in range(length):
            followers = self._followers[word]
            word = followers[_number(f"{position} {prompt}") % len(followers)]
            yield word


def split(text: str) -> list[str]:
    return _WORD.findall(text)


def embedding(text: str) -> list[float]:
    """A unit vector: each word adds one to the dimension of its hash, so that similar texts have similar vectors."""
    vector = [0.0] * DIMENSIONS
    for word in split(text.lower()):
        vector[_number(word) % DIMENSIONS] += 1.0
    length = math.sqrt(sum(value * value for value in vector)) or 1.0
    return [value / length for value in vector]


def _number(text: str) -> int:
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "big")
