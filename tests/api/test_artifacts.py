"""Artifacts: whole or in part, for users and for nodes."""

import hashlib

import pytest

from tests.api.station import Api, bearer


async def entry(api: Api, version: str) -> dict[str, object]:
    backends = (await api.http.get("/api/backends")).json()["backends"]
    return next(each for each in backends if (each["name"], each["version"]) == ("echo", version))


async def test_artifact_matches_the_catalogue_and_is_readable_by_a_node(api: Api) -> None:
    node, echo = await api.approved_node(), await entry(api, "1")
    answer = await api.http.get(str(echo["uri"]), headers=bearer(node["api_token"]))
    assert answer.status_code == 200
    assert hashlib.sha256(answer.content).hexdigest() == echo["sha256"]
    assert len(answer.content) == echo["size"]


async def test_node_that_waits_for_approval_reads_no_artifact(api: Api) -> None:
    """Otherwise whoever has the registration token could read everything that was uploaded."""
    pending, echo = await api.register(), await entry(api, "1")
    answer = await api.http.get(str(echo["uri"]), headers=bearer(pending["api_token"]))
    assert (answer.status_code, answer.json()["code"]) == (403, "not_allowed")


async def test_download_continues_where_it_broke_off(api: Api) -> None:
    path = str((await entry(api, "1"))["uri"])
    whole = await api.http.get(path)
    etag = whole.headers["etag"]
    rest = await api.http.get(path, headers={"Range": "bytes=100-", "If-Range": etag})
    assert rest.status_code == 206
    assert whole.content[:100] + rest.content == whole.content
    assert rest.headers["content-range"] == f"bytes 100-{len(whole.content) - 1}/{len(whole.content)}"


async def test_download_of_a_changed_file_starts_over(api: Api) -> None:
    path = str((await entry(api, "1"))["uri"])
    answer = await api.http.get(path, headers={"Range": "bytes=100-", "If-Range": '"another"'})
    assert (answer.status_code, answer.headers["content-length"]) == (200, str(len(answer.content)))
    beyond = await api.http.get(path, headers={"Range": f"bytes={10**9}-"})
    assert beyond.status_code == 416


@pytest.mark.parametrize(
    "path", ["nothing.tar.gz", "..%2Fadmin-token", "..%2f..%2fadmin-token", "a%00b", "%2Fetc%2Fpasswd", "", "a" * 300]
)
async def test_nothing_but_artifacts_is_served(api: Api, path: str) -> None:
    answer = await api.http.get(f"/artifacts/{path}")
    assert answer.status_code == 404
    assert answer.headers["content-type"] == "application/problem+json"
