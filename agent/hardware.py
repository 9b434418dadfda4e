"""Detects GPUs and memory; the rules that rate a reading are pure, so that tests can replay any machine."""

import ctypes
import os
import platform
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import psutil

from nodesmith.contracts.nats.presence import Resources

_GIB = 1024**3
_INSUFFICIENT_VRAM = 4 * _GIB
_VENDORS = {"0x10de": "nvidia", "0x1002": "amd", "0x8086": "intel"}
_ORDER = ("nvidia", "amd", "intel")
_FORCED = "LOCALAI_FORCE_META_BACKEND_CAPABILITY"
_RUN_FILE = f"{_FORCED}_RUN_FILE"
_DEFAULT_RUN_FILE = "/run/localai/capability"


@dataclass(frozen=True)
class Gpu:
    """One device; memory in bytes, 0 when the device has no dedicated memory."""

    vendor: str
    total: int = 0
    free: int = 0
    compute: str = ""
    """NVIDIA's compute capability: 8.9"""


@dataclass(frozen=True)
class HardwareReading:
    """Everything the rules need: recorded by a probe, replayed by tests."""

    system: str
    machine: str
    gpus: tuple[Gpu, ...] = ()
    cuda: tuple[int, ...] = ()
    """major versions that are installed below /usr/local"""
    total_ram: int = 0
    available_ram: int = 0
    is_tegra: bool = False
    forced: str = ""
    """capability set by the environment, else by the run file"""


def capability(reading: HardwareReading) -> str:
    """Return LocalAI's capability name for this machine, checked in LocalAI's order."""
    if reading.forced:
        return reading.forced
    if reading.system == "darwin":
        return "metal" if reading.machine == "arm64" else "darwin-x86"
    vendor = gpu_vendor(reading)
    if reading.machine in ("aarch64", "arm64") and vendor == "nvidia":
        return _with_cuda("nvidia-l4t", reading)
    if not vendor or total_vram(reading) <= _INSUFFICIENT_VRAM:
        return "default"
    return _with_cuda("nvidia", reading) if vendor == "nvidia" else vendor


def gpu_vendor(reading: HardwareReading) -> str:
    """Return the vendor that decides the capability when the machine has several."""
    found = {gpu.vendor for gpu in reading.gpus}
    return next((vendor for vendor in _ORDER if vendor in found), "")


def is_unified(reading: HardwareReading) -> bool:
    """CPU and GPU share one memory: Jetson and Apple silicon."""
    return reading.is_tegra or (reading.system == "darwin" and reading.machine == "arm64")


def total_vram(reading: HardwareReading) -> int:
    if is_unified(reading):
        return reading.total_ram
    return sum(gpu.total for gpu in _relevant_gpus(reading))


def available_vram(reading: HardwareReading) -> int:
    if is_unified(reading):
        return reading.available_ram
    return sum(gpu.free for gpu in _relevant_gpus(reading))


def resources_of(reading: HardwareReading) -> Resources:
    """Build the resources message; 0 means none, so a machine that lost its GPU reports 0."""
    computes = [gpu.compute for gpu in _relevant_gpus(reading) if gpu.compute]
    return Resources(
        total_vram=total_vram(reading),
        available_vram=available_vram(reading),
        total_ram=reading.total_ram,
        available_ram=reading.available_ram,
        gpu_vendor="apple" if reading.system == "darwin" and is_unified(reading) else gpu_vendor(reading),
        gpu_compute_capability=min(computes, default="", key=_version),
        capability=capability(reading),
    )


def _relevant_gpus(reading: HardwareReading) -> list[Gpu]:
    vendor = gpu_vendor(reading)
    return [gpu for gpu in reading.gpus if gpu.vendor == vendor]


def _with_cuda(name: str, reading: HardwareReading) -> str:
    newest = next((major for major in (13, 12) if major in reading.cuda), None)
    return f"{name}-cuda-{newest}" if newest else name


def _version(words: str) -> tuple[int, ...]:
    return tuple(int(part) for part in words.split(".") if part.isdigit())


# probing ------------------------------------------------------------------------------------------------------


def read_hardware(root: Path = Path("/"), environment: Mapping[str, str] = os.environ) -> HardwareReading:
    """Probe this machine: NVML if NVIDIA's driver is installed, else sysfs; `root` may be a recorded tree."""
    memory = psutil.virtual_memory()
    gpus = _nvml() if root == Path("/") else []
    listed = _drm(root / "sys/class/drm")
    seen = {gpu.vendor for gpu in gpus}
    return HardwareReading(
        system=platform.system().lower(),
        machine=platform.machine().lower(),
        gpus=(*gpus, *(gpu for gpu in listed if gpu.vendor not in seen)),
        cuda=tuple(major for major in (12, 13) if (root / f"usr/local/cuda-{major}").is_dir()),
        total_ram=memory.total,
        available_ram=memory.available,
        is_tegra=(root / "etc/nv_tegra_release").exists(),
        forced=_forced_capability(root, environment),
    )


def _forced_capability(root: Path, environment: Mapping[str, str]) -> str:
    if forced := environment.get(_FORCED, "").strip():
        return forced
    file = root / environment.get(_RUN_FILE, _DEFAULT_RUN_FILE).lstrip("/")
    try:
        return file.read_text().strip()
    except OSError:
        return ""


def _drm(folder: Path) -> list[Gpu]:
    """List the cards known to the kernel; AMD's and newer Intel drivers report their memory."""
    found = []
    for card in sorted(folder.glob("card[0-9]*/device")):
        vendor = _VENDORS.get(_read_text(card / "vendor"), "")
        if vendor:
            total, used = _read_number(card / "mem_info_vram_total"), _read_number(card / "mem_info_vram_used")
            found.append(Gpu(vendor, total=total, free=max(total - used, 0)))
    return found


def _read_text(file: Path) -> str:
    try:
        return file.read_text().strip()
    except OSError:
        return ""


def _read_number(file: Path) -> int:
    text = _read_text(file)
    return int(text) if text.isdigit() else 0


class _Memory(ctypes.Structure):
    _fields_ = (("total", ctypes.c_ulonglong), ("free", ctypes.c_ulonglong), ("used", ctypes.c_ulonglong))


def _nvml() -> list[Gpu]:
    """Query NVIDIA's management library, if the driver installed it."""
    try:
        library = ctypes.CDLL("libnvidia-ml.so.1")
    except OSError:
        return []
    if library.nvmlInit_v2() != 0:
        return []
    try:
        count = ctypes.c_uint()
        library.nvmlDeviceGetCount_v2(ctypes.byref(count))
        return [_nvidia(library, number) for number in range(count.value)]
    finally:
        library.nvmlShutdown()


def _nvidia(library: ctypes.CDLL, number: int) -> Gpu:
    device = ctypes.c_void_p()
    library.nvmlDeviceGetHandleByIndex_v2(ctypes.c_uint(number), ctypes.byref(device))
    memory, major, minor = _Memory(), ctypes.c_int(), ctypes.c_int()
    library.nvmlDeviceGetMemoryInfo(device, ctypes.byref(memory))
    library.nvmlDeviceGetCudaComputeCapability(device, ctypes.byref(major), ctypes.byref(minor))
    return Gpu("nvidia", memory.total, memory.free, f"{major.value}.{minor.value}")
