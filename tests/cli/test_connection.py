"""Where the command line finds the API: options, environment, or the home folder of `nodesmith up`."""

from pathlib import Path

import pytest

from nodesmith.cli.connection import connect
from nodesmith.cli.errors import CommandFailed
from nodesmith.stack.home import Connection, Home


def home_with_connection(folder: Path) -> Path:
    home = Home(folder)
    home.create()
    home.secret("admin-token").write_text("from-the-home\n")
    home.write_connection(Connection("http://127.0.0.1:8900", home.secret("admin-token")))
    return folder


def test_url_and_token_are_found_in_the_home(tmp_path: Path) -> None:
    with connect(None, None, home_with_connection(tmp_path)) as api:
        assert api.url == "http://127.0.0.1:8900"
        assert api._transport._http.headers["Authorization"] == "Bearer from-the-home"


def test_options_take_precedence_over_the_home(tmp_path: Path) -> None:
    with connect("http://example.invalid/", "given", home_with_connection(tmp_path)) as api:
        assert api.url == "http://example.invalid"
        assert api._transport._http.headers["Authorization"] == "Bearer given"


def test_home_token_is_not_sent_to_another_address(tmp_path: Path) -> None:
    with pytest.raises(CommandFailed, match="No token was given for http"):
        connect("http://example.invalid", None, home_with_connection(tmp_path))


def test_missing_home_names_both_remedies(tmp_path: Path) -> None:
    with pytest.raises(CommandFailed, match="is not the home of a Nodesmith") as refused:
        connect(None, None, tmp_path / "nothing")
    assert "nodesmith up" in refused.value.remedy
    assert "NODESMITH_URL" in refused.value.remedy
