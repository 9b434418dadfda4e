"""The list of nodes over HTTP: LocalAI's array, with filters, order and pages."""

from urllib.parse import parse_qs, urlsplit

import pytest

from tests.api.station import Api


async def names(api: Api, **query: str) -> list[str]:
    answer = await api.http.get("/api/nodes", params=query)
    assert answer.status_code == 200, answer.text
    return [node["name"] for node in answer.json()]


async def test_list_is_localais_array_and_says_how_many(api: Api) -> None:
    """R24."""
    for name in ("list-b", "list-a"):
        await api.register(name=name, labels={"suite": "array"})
    answer = await api.http.get("/api/nodes")
    listed = answer.json()
    assert [node["name"] for node in listed] == sorted(node["name"] for node in listed)
    assert int(answer.headers["x-total-count"]) == len(listed) >= 2
    assert "link" not in answer.headers


async def test_list_takes_filters(api: Api) -> None:
    await api.approved_node(name="filter-1", labels={"suite": "filter", "zone": "a"})
    await api.register(name="filter-2", labels={"suite": "filter", "zone": "b"})
    assert await names(api, selector="suite=filter,zone in (a,b)") == ["filter-1", "filter-2"]
    assert await names(api, selector="suite=filter,zone!=a") == ["filter-2"]
    assert await names(api, selector="suite=filter", status="pending") == ["filter-2"]
    assert await names(api, text="FILTER-1") == ["filter-1"]
    assert await names(api, selector="suite=filter", backend="echo") == []
    assert await names(api, selector="suite=filter", sort="-name") == ["filter-2", "filter-1"]


async def test_pages_follow_the_link(api: Api) -> None:
    for number in range(5):
        await api.register(name=f"page-{number}", labels={"suite": "page"})
    url = "/api/nodes?selector=suite%3Dpage&limit=2"
    seen: list[str] = []
    while url:
        answer = await api.http.get(url)
        seen += [node["name"] for node in answer.json()]
        assert answer.headers["x-total-count"] == "5"
        link = answer.headers.get("link", "")
        url = link[1 : link.index(">")] if link else ""
        assert not link or parse_qs(urlsplit(url).query)["cursor"] == [answer.headers["x-next-cursor"]]
    assert seen == [f"page-{number}" for number in range(5)]


@pytest.mark.parametrize(
    ("query", "field"),
    [
        ({"selector": "zone>3"}, "selector"),
        ({"selector": "zone in ()"}, "selector"),
        ({"status": "sleepy"}, "status"),
        ({"sort": "weight"}, "sort"),
        ({"limit": "0"}, "limit"),
        ({"limit": "1001"}, "limit"),
        ({"cursor": "nonsense", "limit": "1"}, "cursor"),
        ({"cursor": "W1tb" * 5000, "limit": "1"}, "cursor"),
    ],
)
async def test_what_cannot_be_listed_is_refused_by_name(api: Api, query: dict[str, str], field: str) -> None:
    answer = await api.http.get("/api/nodes", params=query)
    assert (answer.status_code, answer.json()["field"]) == (400, field)
    assert answer.json()["error"]["type"] == "node_error"


async def test_selector_error_names_the_position(api: Api) -> None:
    problem = (await api.http.get("/api/nodes", params={"selector": "zone=a,rack>3"})).json()
    assert problem["position"] == "12"
    assert "position 12: expected" in problem["detail"]


@pytest.mark.parametrize("name", ["selector", "backend"])
async def test_a_nul_in_a_filter_is_named(api: Api, name: str) -> None:
    answer = await api.http.get("/api/nodes", params={name: "a=x\0"})
    assert (answer.status_code, answer.json()["field"]) == (400, name)
