"""Breaks in the confinement of backends, and in how the agent identifies its processes."""

from dataclasses import replace
from typing import Any

from tests.mutations.arming import Break, names_of, rules


def _by_the_clock(original: Any, pid: int) -> Any:
    return names_of(original)._created_at(pid)


def _forget_what_ran(original: Any, self: Any, started: Any, old: Any) -> Any:
    del old
    return original(self, started, [])


def _hand_on_everything(original: Any, self: Any, scratch: Any) -> Any:
    return {**self.environment, **original(self, scratch)}


def _allow_the_home(original: Any, self: Any, folder: Any, scratch: Any, port: Any) -> Any:
    found = original(self, folder, scratch, port)
    return replace(found, see=[*found.see, str(self.home.absolute())])


def _say_nothing(original: Any, self: Any) -> Any:
    return original(self).model_copy(update={"confinement": None})


def _claim_everything_is_hidden(original: Any, self: Any) -> Any:
    return original(self).model_copy(update={"missing": []})


CONFINEMENT = (
    Break(
        rules("confinement"),
        "a node does not say how its backends are confined",
        "nodesmith.agent.node:Agent._registration",
        _say_nothing,
        tests=("test_registration_says_how_backends_are_confined",),
    ),
    Break(
        rules("confinement"),
        "a node says that everything is hidden from backends",
        "nodesmith.agent.run.confinement:Confinement.summary",
        _claim_everything_is_hidden,
        tests=("test_summary_says_what_the_kernel_can_and_which_user_backends_have",),
    ),
    Break(
        rules("confinement"),
        "a backend may read the agent's home",
        "nodesmith.agent.run.confinement:Confinement._rules",
        _allow_the_home,
        tests=("test_a_hostile_backend_is_refused_everything_and_has_what_it_needs",),
    ),
    Break(
        rules("confinement"),
        "a backend gets the agent's environment",
        "nodesmith.agent.run.confinement:Confinement._environment_of",
        _hand_on_everything,
        tests=("test_a_hostile_backend_is_refused_everything_and_has_what_it_needs",),
    ),
    Break(
        rules("confinement"),
        "a readable folder opens what is hidden in it",
        "nodesmith.agent.run.confinement:_paths_outside_hidden",
        lambda original, path, hidden: [path],
        tests=("test_hidden_path_below_a_readable_one_stays_hidden",),
    ),
    Break(
        rules("processes"),
        "a process is known by the time of the clock",
        "nodesmith.runtime.process_identity:started_at",
        _by_the_clock,
        tests=(
            "test_a_process_is_the_same_after_the_clock_was_set",
            "test_children_are_found_again_after_the_clock_was_set",
        ),
    ),
    Break(
        rules("processes"),
        "the pid file of a running PostgreSQL is removed",
        "nodesmith.stack.servers.postgres:PostgresServer._is_postmaster",
        lambda _, self, pid: False,
        tests=("test_pid_file_of_a_running_postgres_stays_although_the_clock_was_set",),
    ),
    Break(
        rules("processes"),
        "the processes before a failed change are not recorded on the disk",
        "nodesmith.agent.run.backend_processes:RunningProcesses._stop_started",
        _forget_what_ran,
        tests=("test_full_disk_without_reserve_leaves_a_valid_tree_and_allows_a_retry",),
        waits=True,
    ),
)
