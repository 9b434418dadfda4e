import pytest

from nodesmith.domain.kinds import Kind
from nodesmith.domain.node import NodeStatus, NodeType
from nodesmith.domain.operation import Phase, Reason, State
from nodesmith.domain.wire_enum import WireEnum


@pytest.mark.parametrize("enum", [NodeStatus, NodeType, Kind, Phase, Reason, State])
def test_a_value_of_a_newer_peer_reads_as_unknown(enum: type[WireEnum]) -> None:
    assert enum("a-word-of-tomorrow").name == "UNKNOWN"


def test_an_enum_without_unknown_still_refuses() -> None:
    class Strict(WireEnum):
        ONLY = "only"

    with pytest.raises(ValueError, match="a-word-of-tomorrow"):
        Strict("a-word-of-tomorrow")
