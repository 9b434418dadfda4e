import pytest

from nodesmith.contracts.nats import subjects


@pytest.mark.parametrize(
    ("rendered", "expected"),
    [
        (subjects.install("n1"), "nodes.n1.backend.install"),
        (subjects.upgrade("n1"), "nodes.n1.backend.upgrade"),
        (subjects.delete("n1"), "nodes.n1.backend.delete"),
        (subjects.list_backends("n1"), "nodes.n1.backend.list"),
        (subjects.stop_backend("n1"), "nodes.n1.backend.stop"),
        (subjects.stop_node("n1"), "nodes.n1.stop"),
        (subjects.cancel("n1"), "nodes.n1.backend.cancel"),
        (subjects.operation("n1"), "nodes.n1.backend.op"),
        (subjects.heartbeat("n1"), "nodes.n1.heartbeat"),
        (subjects.trust("n1"), "nodes.n1.trust"),
        (subjects.progress("n1", "op1"), "nodes.n1.backend.install.op1.progress"),
        (subjects.outcome("n1", "op1"), "nodes.n1.backend.install.op1.outcome"),
        (subjects.reply(subjects.operation("n1"), "s", "t"), "_R.n1.s.t"),
        (subjects.replies("s"), "_R.*.s.*"),
    ],
)
def test_a_subject_is_spelled_as_localai_and_our_agents_expect_it(rendered: str, expected: str) -> None:
    """One progress subject for all kinds; upgrade has a subject of its own."""
    assert rendered == expected


@pytest.mark.parametrize("structural", [".", "*", ">", " ", "\t", "\n"])
def test_an_identifier_cannot_reach_into_another_subject(structural: str) -> None:
    assert subjects.token(f"n1{structural}n2") == "n1-n2"
    assert subjects.install(f"n1{structural}n2") == "nodes.n1-n2.backend.install"
    assert subjects.progress("n1", f"op{structural}") == "nodes.n1.backend.install.op-.progress"


def test_everything_else_in_an_identifier_is_kept() -> None:
    assert subjects.token("Node_1-ä:@/#") == "Node_1-ä:@/#"


def matches(pattern: str, subject: str) -> bool:
    """NATS' rule: `*` is one token, a last `>` is one or more."""
    wanted, given = pattern.split("."), subject.split(".")
    if wanted[-1] == ">":
        wanted, given = wanted[:-1], given[: len(wanted) - 1] if len(given) >= len(wanted) else []
    return len(wanted) == len(given) and all(one in ("*", other) for one, other in zip(wanted, given, strict=True))


def reports_of(node_id: str) -> list[str]:
    return [subjects.heartbeat(node_id), subjects.progress(node_id, "op"), subjects.outcome(node_id, "op")]


def commands_to(node_id: str) -> list[str]:
    named = [subjects.install, subjects.upgrade, subjects.delete, subjects.list_backends, subjects.stop_backend]
    return [make(node_id) for make in (*named, subjects.stop_node, subjects.cancel, subjects.operation)]


def may(patterns: list[str], subject: str) -> bool:
    return any(matches(pattern, subject) for pattern in patterns)


def test_a_node_may_send_its_own_reports_and_no_others() -> None:
    allowed = subjects.node_publishes("n1")
    assert all(may(allowed, subject) for subject in reports_of("n1"))
    assert not any(may(allowed, subject) for subject in [*reports_of("n2"), *commands_to("n1"), *commands_to("n2")])


def test_node_may_subscribe_only_to_its_own_commands() -> None:
    allowed = subjects.node_subscribes("n1")
    assert all(may(allowed, subject) for subject in commands_to("n1"))
    foreign = [*commands_to("n2"), *reports_of("n2"), "_INBOX.abc", "_R.n1.s.t", "_R.n2.s.t"]
    assert not any(may(allowed, subject) for subject in foreign)


def test_a_node_answers_on_its_own_reply_subjects_only() -> None:
    asked, foreign = subjects.operation("n1"), subjects.operation("n2")
    assert may(subjects.node_publishes("n1"), subjects.reply(asked, "s", "t"))
    assert not may(subjects.node_publishes("n1"), subjects.reply(foreign, "s", "t"))
    assert not may(subjects.node_publishes("n1"), "_INBOX.abc.def")
    assert may(subjects.CONTROL_SUBSCRIBES, subjects.reply(asked, "s", "t"))


@pytest.mark.parametrize("node_id", ["*", ">", "n1.>", "n1.*"])
def test_a_node_id_made_of_wildcards_gives_no_further_rights(node_id: str) -> None:
    granted = [*subjects.node_publishes(node_id), *subjects.node_subscribes(node_id)]
    assert not any(may(granted, subject) for subject in [*reports_of("n1"), *commands_to("n1")])


@pytest.mark.parametrize(
    ("pattern", "subject"),
    [
        (subjects.EVERY_PROGRESS, subjects.progress("n1", "op")),
        (subjects.EVERY_OUTCOME, subjects.outcome("n1", "op")),
        (subjects.EVERY_HEARTBEAT, subjects.heartbeat("n1")),
    ],
)
def test_control_plane_may_subscribe_to_every_node(pattern: str, subject: str) -> None:
    assert matches(pattern, subject)
    assert may(subjects.CONTROL_SUBSCRIBES, subject)


def test_the_control_plane_may_command_every_node() -> None:
    assert all(may(subjects.CONTROL_PUBLISHES, subject) for subject in commands_to("n1"))
