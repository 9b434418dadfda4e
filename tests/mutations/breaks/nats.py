"""Breaks in NATS permissions and in the signatures of nodes' reports."""

from typing import Any

from tests.mutations.arming import Break, names_of, rules


def _publish_everywhere(original: Any, node_id: str) -> list[str]:
    return [*original(node_id), "nodes.>"]


def _answer_everywhere(original: Any, node_id: str) -> list[str]:
    return [*original(node_id), "_R.>"]


def _read_everything(original: Any, node_id: str) -> list[str]:
    return [*original(node_id), "nodes.>"]


def _believe_everything(original: Any, public: str, what: Any, about: str, data: bytes) -> Any:
    return names_of(original).unverified(data)


def _sign_without_purpose(_: Any, what: Any, about: str, payload: bytes) -> bytes:
    return payload


def _sign_any_nonce(original: Any, self: Any, nonce: str) -> Any:
    names = names_of(original)
    signature = names.KeyPair.from_seed(self._credentials().seed).sign(nonce.encode())
    return names.base64.b64encode(signature)


async def _believe_the_run(_: Any, self: Any, row: Any) -> Any:
    return row


async def _prove_nothing_about_the_operation(original: Any, self: Any, node_id: str, op_id: str, outcome: Any) -> Any:
    names = names_of(original)
    payload = await self.open(node_id, names.Signed.OUTCOME, node_id, outcome.signed.encode())
    return names.Outcome.decode(payload).model_copy(update={"signed": outcome.signed})


async def _give_any_key(_: Any, self: Any, node_id: str, credential: Any, *, now: Any) -> bool:
    return True


def _keep_the_key(original: Any, self: Any) -> None:
    seed = self._seed
    original(self)
    self._seed = seed


def _admit_every_protocol(original: Any, self: Any, request: Any) -> None:
    names_of(original)._check_facts(request)


NATS = (
    Break(
        rules("nats"),
        "a node may publish for other nodes",
        "nodesmith.contracts.nats.subjects:node_publishes",
        _publish_everywhere,
        tests=("test_a_credential_publishes_what_is_its_own_and_nothing_else",),
    ),
    Break(
        rules("nats"),
        "a node may answer for other nodes",
        "nodesmith.contracts.nats.subjects:node_publishes",
        _answer_everywhere,
        tests=("test_node_cannot_answer_for_another_node",),
    ),
    Break(
        rules("nats"),
        "a node may read the commands of others",
        "nodesmith.contracts.nats.subjects:node_subscribes",
        _read_everything,
        tests=("test_a_credential_receives_what_is_its_own_and_nothing_else",),
    ),
    Break(
        rules("nats"),
        "signatures are not verified",
        "nodesmith.bus.signed_messages:opened",
        _believe_everything,
        tests=("test_unsigned_answers_and_outcomes_of_an_agent_are_dropped",),
    ),
    Break(
        rules("nats"),
        "a signature does not say what it is for",
        "nodesmith.bus.signed_messages:_signed_bytes",
        _sign_without_purpose,
        tests=("test_replayed_reply_answers_no_other_request",),
    ),
    Break(
        rules("nats"),
        "the agent signs whatever the NATS server asks for",
        "nodesmith.bus.connection:_Login.sign",
        _sign_any_nonce,
        tests=("test_a_server_gets_no_signature_of_anything_but_a_nonce",),
    ),
    Break(
        rules("nats"),
        "a success is recorded without the node's signature",
        "nodesmith.services.operations.verified_records:VerifiedRecords._proven",
        _believe_the_run,
        tests=("test_success_without_the_signed_outcome_of_the_node_moves_no_state",),
    ),
    Break(
        rules("nats"),
        "a signed outcome counts for any operation",
        "nodesmith.bus.signed_messages:Signatures.verify_outcome",
        _prove_nothing_about_the_operation,
        tests=("test_verified_outcome_matches_its_operation_and_uses_only_signed_bytes",),
    ),
    Break(
        rules("nats"),
        "a key that was taken back gets a credential again",
        "nodesmith.store.nodes.nats_credentials:NatsCredentials.issue",
        _give_any_key,
        tests=("test_foreign_or_revoked_nats_key_gets_no_credential",),
    ),
    Break(
        rules("nats"),
        "a removed node keeps its key",
        "nodesmith.agent.link.registration:Registrar.forget",
        _keep_the_key,
        tests=("test_a_node_that_is_not_known_any_more_makes_a_new_key",),
    ),
    Break(
        rules("nats"),
        "LocalAI workers are always admitted",
        "nodesmith.services.nodes.registration:Registration._check",
        _admit_every_protocol,
        tests=("test_localai_workers_are_refused_unless_an_admin_admits_them",),
    ),
)
