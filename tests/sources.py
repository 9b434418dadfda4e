"""The sources that tests may use: servers and files of this machine."""

from ipaddress import ip_network

from nodesmith.domain.source_policy import SourcePolicy

NETWORKS, FOLDERS = "127.0.0.0/8,::1/128", "/"
LOCAL = SourcePolicy(networks=tuple(map(ip_network, NETWORKS.split(","))), folders=(FOLDERS,))
ENVIRONMENT = {
    f"NODESMITH_{whose}SOURCE_{what}": value
    for whose in ("", "AGENT_")
    for what, value in (("NETWORKS", NETWORKS), ("FOLDERS", FOLDERS))
}
