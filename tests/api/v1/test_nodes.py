"""The list of nodes over HTTP: filters, order and pages."""

import pytest

from tests.api.station import Api


async def names(api: Api, **query: str) -> list[str]:
    answer = await api.http.get("/api/v1/nodes", params=query)
    assert answer.status_code == 200, answer.text
    return [node["name"] for node in answer.json()["items"]]


async def test_list_is_one_page_ordered_by_name_with_the_total(api: Api) -> None:
    for name in ("list-b", "list-a"):
        await api.register(name=name, labels={"suite": "array"})
    page = (await api.http.get("/api/v1/nodes")).json()
    listed = [node["name"] for node in page["items"]]
    assert listed == sorted(listed)
    assert page["total"] == len(listed) >= 2
    assert page["next_cursor"] is None


async def test_localais_list_is_an_array_of_the_same_nodes(api: Api) -> None:
    """R24."""
    for name in ("array-b", "array-a"):
        await api.register(name=name, labels={"suite": "array"})
    listed = (await api.http.get("/api/nodes")).json()
    assert [node["name"] for node in listed] == sorted(node["name"] for node in listed)
    assert listed == (await api.http.get("/api/v1/nodes")).json()["items"]


async def test_list_takes_filters(api: Api) -> None:
    await api.approved_node(name="filter-1", labels={"suite": "filter", "zone": "a"})
    await api.register(name="filter-2", labels={"suite": "filter", "zone": "b"})
    assert await names(api, selector="suite=filter,zone in (a,b)") == ["filter-1", "filter-2"]
    assert await names(api, selector="suite=filter,zone!=a") == ["filter-2"]
    assert await names(api, selector="suite=filter", status="pending") == ["filter-2"]
    assert await names(api, text="FILTER-1") == ["filter-1"]
    assert await names(api, selector="suite=filter", backend="echo") == []
    assert await names(api, selector="suite=filter", sort="-name") == ["filter-2", "filter-1"]


async def test_pages_follow_the_cursor(api: Api) -> None:
    for number in range(5):
        await api.register(name=f"page-{number}", labels={"suite": "page"})
    seen: list[str] = []
    cursor: str | None = ""
    while cursor is not None:
        query: dict[str, str | int] = {"selector": "suite=page", "limit": 2, "cursor": cursor}
        page = (await api.http.get("/api/v1/nodes", params=query)).json()
        seen += [node["name"] for node in page["items"]]
        assert page["total"] == 5
        cursor = page["next_cursor"]
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
    answer = await api.http.get("/api/v1/nodes", params=query)
    assert (answer.status_code, answer.json()["facts"]["field"]) == (400, field)


async def test_selector_error_names_the_position(api: Api) -> None:
    problem = (await api.http.get("/api/v1/nodes", params={"selector": "zone=a,rack>3"})).json()
    assert problem["facts"] == {"field": "selector", "position": 12}
    assert "position 12: expected" in problem["detail"]


@pytest.mark.parametrize("name", ["selector", "backend"])
async def test_a_nul_in_a_filter_is_named(api: Api, name: str) -> None:
    answer = await api.http.get("/api/v1/nodes", params={name: "a=x\0"})
    assert (answer.status_code, answer.json()["facts"]["field"]) == (400, name)
