"""The choice of a replica."""

from dataclasses import dataclass

from hypothesis import given
from hypothesis import strategies as st

from nodesmith.domain.routing import BLOCK, BLOCKS, DEFAULT_BOUNDS, LoadBounds, pick, prefix_of


@dataclass(frozen=True)
class Replica:
    id: str
    in_flight: int = 0
    last_used: float = 0.0
    available: int = 0


candidates = st.lists(
    st.builds(
        Replica,
        id=st.integers(0, 10_000).map(str),
        in_flight=st.integers(0, 6),
        last_used=st.sampled_from([0.0, 1.0, 2.0]),
        available=st.integers(0, 3),
    ),
    min_size=1,
    max_size=12,
    unique_by=lambda each: each.id,
)
prompts = st.binary(min_size=BLOCK, max_size=3 * BLOCK * BLOCKS)


def test_nothing_to_choose_from() -> None:
    assert pick(list[Replica]()) is None
    assert pick(list[Replica](), prefix=b"x") is None


@given(candidates)
def test_least_busy_then_least_recent_then_most_memory(found: list[Replica]) -> None:
    order = sorted(found, key=lambda each: (each.in_flight, each.last_used, -each.available, each.id))
    assert pick(found) == order[0]


@given(candidates, prompts)
def test_prefix_never_overloads_a_replica(found: list[Replica], prompt: bytes) -> None:
    """Rules 3.4: in flight at most the fewest + 2, and at most the fewest * 1.5 + 1."""
    chosen = pick(found, prefix=prefix_of("m", prompt))
    fewest = min(each.in_flight for each in found)
    assert chosen is not None
    assert chosen.in_flight <= fewest + 2
    assert chosen.in_flight <= fewest * 1.5 + 1


@given(candidates, prompts, st.integers(0, 11))
def test_prompts_of_other_replicas_stay_when_one_goes(found: list[Replica], prompt: bytes, index: int) -> None:
    idle = [Replica(each.id) for each in found]
    gone = idle[index % len(idle)]
    prefix = prefix_of("m", prompt)
    before, after = pick(idle, prefix=prefix), pick([each for each in idle if each != gone], prefix=prefix)
    assert before in (gone, after)


@given(prompts, st.binary(max_size=2000))
def test_only_the_first_four_whole_blocks_count(prompt: bytes, more: bytes) -> None:
    whole = prompt[: len(prompt) // BLOCK * BLOCK]
    assert prefix_of("m", prompt) == prefix_of("m", whole)
    if len(prompt) >= BLOCK * BLOCKS:
        assert prefix_of("m", prompt + more) == prefix_of("m", prompt)


def test_short_prompt_has_no_prefix_and_models_differ() -> None:
    assert prefix_of("m", b"x" * (BLOCK - 1)) is None
    assert prefix_of("m", b"x" * BLOCK) != prefix_of("n", b"x" * BLOCK)


def test_prefix_is_the_same_in_every_process() -> None:
    prefix = prefix_of("model", b"x" * BLOCK)
    assert prefix is not None
    assert prefix.hex() == "e10df380a12ebb3b22e5c1d580cedbe7"
    chosen = pick([Replica(str(number)) for number in range(10)], prefix=prefix)
    assert chosen is not None
    assert chosen.id == "1"


def test_prompts_spread_over_the_replicas() -> None:
    found = [Replica(str(number)) for number in range(4)]
    chosen = [pick(found, prefix=prefix_of("m", f"{number} ".encode() * BLOCK)) for number in range(400)]
    counts = [sum(1 for each in chosen if each == replica) for replica in found]
    assert min(counts) > 60


def test_default_bounds() -> None:
    assert LoadBounds(absolute=2, relative=1.5) == DEFAULT_BOUNDS
    assert (BLOCK, BLOCKS) == (256, 4)
