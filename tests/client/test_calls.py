"""Calls are data: quoted paths, and the page after a cursor."""

from nodesmith.client.calls import Call, segment


def test_a_node_name_cannot_change_the_path() -> None:
    assert segment("a/../b c?d") == "a%2F..%2Fb%20c%3Fd"


def test_the_call_of_the_next_page_keeps_every_filter() -> None:
    first: Call[dict[str, str]] = Call("GET", "/nodes", dict, query={"selector": "zone=a", "cursor": None})
    assert first.after("c1").query == {"selector": "zone=a", "cursor": "c1"}
    assert first.query == {"selector": "zone=a", "cursor": None}
