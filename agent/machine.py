"""What this machine is and has."""

import hashlib
import uuid
from pathlib import Path

import psutil

from agent.durable import write_durably
from agent.hardware import look, resources_of
from contracts.messages import Resources

_SYSTEM_ID = Path("/etc/machine-id")


def machine_id(home: Path, system_id: Path = _SYSTEM_ID) -> str:
    """The same for the life of a machine; the system's own id is confidential, so only its digest is told."""
    try:
        own = system_id.read_text().strip()
    except OSError:
        own = ""
    return hashlib.sha256(f"nodesmith:{own or _generated_id(home)}".encode()).hexdigest()[:32]


def _generated_id(home: Path) -> str:
    """Containers often have no machine id: keep one in the home."""
    file = home / "machine-id"
    if not file.exists():
        write_durably(file, uuid.uuid4().hex.encode())
    return file.read_text().strip()


def resources(home: Path) -> Resources:
    """What the machine has now, with the disk on which backends lie."""
    disk = psutil.disk_usage(str(home))
    return resources_of(look()).model_copy(update={"total_disk": disk.total, "available_disk": disk.free})
