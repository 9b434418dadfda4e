"""The generated pages of the documentation are those that the code makes now, and leave nothing out."""

from pathlib import Path

import pytest
from pydantic import BaseModel

from nodesmith.agent.settings import AgentSettings
from nodesmith.contracts.temporal.operations import Policy
from nodesmith.runtime.gateway_settings import GatewaySettings
from nodesmith.runtime.settings import ControlSettings
from tests.reference import settings
from tests.reference.pages import PAGES


@pytest.mark.parametrize("path", PAGES, ids=lambda path: path.name)
def test_generated_page_is_up_to_date(path: Path) -> None:
    assert path.read_text() == PAGES[path](), "run: make reference"


@pytest.mark.parametrize("of", [ControlSettings, GatewaySettings, AgentSettings, Policy])
def test_every_setting_has_a_meaning(of: type[BaseModel]) -> None:
    assert [name for name, _, meaning in settings._rows(of, "") if not meaning] == []
