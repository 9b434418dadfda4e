"""`NODESMITH_URI_WITHOUT_DIGEST`: an archive without a digest, where the operator allows it."""

from pathlib import Path

import pytest

from tests.api.station import composed, ready, settings_for
from tests.servers import NatsForTests


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One home for one database: an API with other keys would not start on it."""
    return tmp_path_factory.mktemp("home")


@pytest.mark.parametrize(("setting", "status"), [("", 400), ("true", 202)], ids=["by default", "when it is set"])
async def test_an_archive_by_uri_without_its_digest(
    monkeypatch: pytest.MonkeyPatch,
    home: Path,
    database_url: str,
    nats_server: NatsForTests,
    temporal_address: str,
    queue: str,
    setting: str,
    status: int,
) -> None:
    if setting:
        monkeypatch.setenv("NODESMITH_URI_WITHOUT_DIGEST", setting)
    settings = settings_for(
        home,
        database_url=database_url,
        nats_url=nats_server.url,
        account_seed=nats_server.trust.account_seed,
        temporal=temporal_address,
    )
    async with composed(settings, queue=queue) as api:
        await ready(api)
        node = await api.approved_node()
        uri = "https://files.invalid/clock-1.0.tar.gz"
        answer = await api.http.post("/api/v1/operations", json={"kind": "install", "node": node["id"], "uri": uri})
        assert answer.status_code == status, answer.text
        if status == 202:
            row = (await api.http.get(f"/api/v1/operations/{answer.json()['op_id']}")).json()
            assert (row["uri"], row.get("sha256") or "") == (uri, "")
        else:
            assert "sha256" in answer.text
