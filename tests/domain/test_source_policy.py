"""Allowed sources, checked before any address is resolved, opened or connected."""

from ipaddress import ip_network

import pytest

from nodesmith.domain.errors import SourceNotAllowed
from nodesmith.domain.source_policy import SourcePolicy

NOT_PUBLIC = [
    "127.0.0.1",
    "127.1",
    "2130706433",
    "0x7f000001",
    "0177.0.0.1",
    "localhost",
    "LOCALHOST.",
    "x.localhost",
    "0.0.0.0",
    "10.1.2.3",
    "172.16.0.1",
    "192.168.1.1",
    "100.64.0.1",
    "169.254.169.254",
    "224.0.0.1",
    "[::1]",
    "[::]",
    "[fe80::1%25eth0]",
    "[fd00:ec2::254]",
    "[::ffff:127.0.0.1]",
    "[64:ff9b::7f00:1]",
    "[2002:7f00:1::]",
    "[64:ff9b:1::a9fe:a9fe]",
    "[::127.0.0.1]",
    "[::ffff:0:10.0.0.1]",
    "[fec0::1]",
    "[5f00::1]",
    "168.63.129.16",
    "192.0.0.192",
    "192.88.99.1",
    "[3fff::1]",
    "[::ffff:168.63.129.16]",
    "[2002:a83f:8110::]",
    "0x7f.1",
    "0x7F.0x1",
    "017700000001",
    "[0:0:0:0:0:ffff:7f00:1]",
]


@pytest.mark.parametrize("host", NOT_PUBLIC)
@pytest.mark.parametrize("uri", ["http://{}/x.tar", "https://{}:8443/x.tar", "oci://{}:5000/team/x:1"])
def test_addresses_that_are_not_public_are_refused(host: str, uri: str) -> None:
    with pytest.raises(SourceNotAllowed):
        SourcePolicy().check(uri.format(host))


@pytest.mark.parametrize(
    "uri", ["https://93.184.216.34/x", "https://example.com/x", "quay.io/team/x:1", "oci://ghcr.io/a/b"]
)
def test_names_and_public_addresses_are_allowed(uri: str) -> None:
    SourcePolicy().check(uri)


def test_networks_are_allowed_by_name_only() -> None:
    policy = SourcePolicy(networks=(ip_network("10.0.0.0/8"), ip_network("::1/128")))
    policy.check("http://10.1.2.3/x")
    policy.check("http://[::1]/x")
    policy.check("http://[::ffff:10.0.0.1]/x")
    for uri in ("http://127.0.0.1/x", "http://192.168.0.1/x"):
        with pytest.raises(SourceNotAllowed):
            policy.check(uri)
    assert policy.allowed_among(["127.0.0.1", "10.0.0.1", "fe80::1%2"]) == ["10.0.0.1"]


def test_hosts_are_a_list_of_names() -> None:
    policy = SourcePolicy(hosts=("ghcr.io", "*.example.com"))
    for uri in ("oci://ghcr.io/a/b", "https://files.Example.com/x", "https://a.b.example.com:8443/x"):
        policy.check(uri)
    for uri in ("https://example.com/x", "https://ghcr.io.evil.test/x", "https://93.184.216.34/x"):
        with pytest.raises(SourceNotAllowed):
            policy.check(uri)


@pytest.mark.parametrize(
    "uri",
    [
        "file:///etc/shadow",
        "file:///srv/artifacts/../../etc/shadow",
        "file:///srv/artifacts/%2e%2e/%2e%2e/etc/shadow",
        "file:///srv/artifacts-of-others/x",
        "file:///",
        "file:",
    ],
)
def test_files_are_read_below_the_folders_that_are_allowed(uri: str) -> None:
    policy = SourcePolicy(folders=("/srv/artifacts/",))
    policy.check("file:///srv/artifacts/x.tar.gz")
    for each in (policy, SourcePolicy()):
        with pytest.raises(SourceNotAllowed):
            each.check(uri if "://" in uri else "file:///x/../")


def test_every_refusal_says_the_same() -> None:
    """A refusal does not reveal what exists."""
    said = set()
    for uri in ("file:///etc/shadow", "file:///no/such/file", "oci://127.0.0.1:22/a/b", "http://127.0.0.1:9/x"):
        with pytest.raises(SourceNotAllowed) as refusal:
            SourcePolicy().check(uri)
        said.add(refusal.value.message)
    assert len(said) == 1
