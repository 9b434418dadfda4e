"""Identifies this machine and measures its resources."""

import hashlib
import uuid
from pathlib import Path

import psutil

from nodesmith.agent.disk.durable_files import write_durably
from nodesmith.agent.hardware import read_hardware, resources_of
from nodesmith.contracts.nats.presence import Resources

_SYSTEM_ID = Path("/etc/machine-id")


def machine_id(home: Path, system_id: Path = _SYSTEM_ID) -> str:
    """Return a stable id of this machine; systemd's machine id is confidential, so only its digest is used."""
    try:
        own = system_id.read_text().strip()
    except OSError:
        own = ""
    return hashlib.sha256(f"nodesmith:{own or _generated_id(home)}".encode()).hexdigest()[:32]


def _generated_id(home: Path) -> str:
    """Return an id stored in the home, because containers often have no machine id."""
    file = home / "machine-id"
    if not file.exists():
        write_durably(file, uuid.uuid4().hex.encode())
    return file.read_text().strip()


def resources(home: Path) -> Resources:
    """Measure the machine's resources, including the disk that holds the backends."""
    disk = psutil.disk_usage(str(home))
    return resources_of(read_hardware()).model_copy(update={"total_disk": disk.total, "available_disk": disk.free})
