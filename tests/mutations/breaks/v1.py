"""Breaks in the API v1: pages, problems, locations, and LocalAI's shapes beside it."""

import base64
import json
from dataclasses import replace
from typing import Any

from tests.mutations.arming import Break, rules


def _begin_too_early(original: Any, place: Any, places: Any, *, descending: bool) -> int:
    found: int = original(place, places, descending=descending)
    return max(0, found - 1)


def _take_every_cursor(original: Any, cursor: str, order: str) -> Any:
    own, *_ = json.loads(base64.urlsafe_b64decode(cursor + "=="))
    return original(cursor, own if own else order)


V1 = (
    Break(
        rules("pages"),
        "a page of the catalogue begins before the end of the last one",
        "nodesmith.services.catalogue.search:_first_after",
        _begin_too_early,
        tests=("test_backend_that_is_gone_does_not_end_the_walk",),
    ),
    Break(
        rules("pages"),
        "a cursor is good for every list",
        "nodesmith.store.cursors:_read",
        _take_every_cursor,
        tests=("test_a_cursor_belongs_to_its_list_and_order",),
    ),
    Break(
        rules("problems"),
        "facts are texts",
        "nodesmith.api.problems:_json_value",
        lambda original, value: str(value),
        tests=("test_facts_keep_their_json_types",),
    ),
    Break(
        rules("problems"),
        "our own problems have LocalAI's member",
        "nodesmith.api.problems:is_localai",
        lambda original, path: True,
        tests=("test_facts_keep_their_json_types",),
    ),
    Break(
        rules("problems"),
        "LocalAI's clients find no error in a problem",
        "nodesmith.api.problems:is_localai",
        lambda original, path: False,
        tests=("test_unknown_node_is_a_node_error", "test_error_of_the_paths_without_api_has_an_empty_type"),
    ),
    Break(
        rules("problems"),
        "the alternative to a build is hidden among the facts",
        "nodesmith.api.problems:_LOCALAI_MEMBERS",
        lambda members: set(),
        tests=("test_apply_of_one_build_names_its_meta",),
    ),
    Break(
        rules("locations"),
        "a repeated answer has lost its location",
        "nodesmith.api.idempotency:PendingAnswer._answer",
        lambda original, self, messages: replace(original(self, messages), location=None),
        tests=("test_repeated_request_has_the_same_location",),
    ),
    Break(
        rules("locations"),
        "nothing says where it is",
        "nodesmith.api.locations:locate",
        lambda original, response, address: None,
        tests=("test_what_was_created_or_ordered_is_found_at_its_location",),
    ),
    Break(
        rules("idempotency"),
        "the other name of a node makes another request",
        "nodesmith.contracts.http.operations:OperationBody.without_target",
        lambda original, self: self,
        tests=("test_a_repeated_request_says_that_it_is_one_and_joins_nothing",),
    ),
    Break(
        rules("words"),
        "a kind that does not exist is admitted",
        "nodesmith.contracts.http.shared:one_of_ours",
        lambda original, word: word,
        tests=("test_what_is_wrong_with_the_backend_is_named",),
    ),
)
