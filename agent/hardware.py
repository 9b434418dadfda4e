"""What this machine can compute with: seen once, then judged by pure rules, so that any machine can be replayed."""

import ctypes
import os
import platform
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import psutil

from contracts.messages import Resources

_GIB = 1024**3
_TOO_LITTLE_VRAM = 4 * _GIB
_VENDORS = {"0x10de": "nvidia", "0x1002": "amd", "0x8086": "intel"}
_ORDER = ("nvidia", "amd", "intel")
_FORCED = "LOCALAI_FORCE_META_BACKEND_CAPABILITY"
_RUN_FILE = f"{_FORCED}_RUN_FILE"
_DEFAULT_RUN_FILE = "/run/localai/capability"


@dataclass(frozen=True)
class Gpu:
    """One device; memory in bytes, 0 when it has none of its own."""

    vendor: str
    total: int = 0
    free: int = 0
    compute: str = ""
    """NVIDIA's compute capability: 8.9"""


@dataclass(frozen=True)
class Sight:
    """Everything that the rules look at: what a probe records, and what a test replays."""

    system: str
    machine: str
    gpus: tuple[Gpu, ...] = ()
    cuda: tuple[int, ...] = ()
    """major versions that are installed below /usr/local"""
    total_ram: int = 0
    available_ram: int = 0
    is_tegra: bool = False
    forced: str = ""
    """by the environment, else by the run file"""


def capability(sight: Sight) -> str:
    """LocalAI's word for what runs here, in LocalAI's order of looking."""
    if sight.forced:
        return sight.forced
    if sight.system == "darwin":
        return "metal" if sight.machine == "arm64" else "darwin-x86"
    vendor = gpu_vendor(sight)
    if sight.machine in ("aarch64", "arm64") and vendor == "nvidia":
        return _with_cuda("nvidia-l4t", sight)
    if not vendor or total_vram(sight) <= _TOO_LITTLE_VRAM:
        return "default"
    return _with_cuda("nvidia", sight) if vendor == "nvidia" else vendor


def gpu_vendor(sight: Sight) -> str:
    """The one that counts, when there are several."""
    there = {gpu.vendor for gpu in sight.gpus}
    return next((vendor for vendor in _ORDER if vendor in there), "")


def is_unified(sight: Sight) -> bool:
    """CPU and GPU share one memory: Jetson and Apple silicon."""
    return sight.is_tegra or (sight.system == "darwin" and sight.machine == "arm64")


def total_vram(sight: Sight) -> int:
    if is_unified(sight):
        return sight.total_ram
    return sum(gpu.total for gpu in _counted(sight))


def available_vram(sight: Sight) -> int:
    if is_unified(sight):
        return sight.available_ram
    return sum(gpu.free for gpu in _counted(sight))


def resources_of(sight: Sight) -> Resources:
    """0 is none; a machine that lost its GPU says so."""
    computes = [gpu.compute for gpu in _counted(sight) if gpu.compute]
    return Resources(
        total_vram=total_vram(sight),
        available_vram=available_vram(sight),
        total_ram=sight.total_ram,
        available_ram=sight.available_ram,
        gpu_vendor="apple" if sight.system == "darwin" and is_unified(sight) else gpu_vendor(sight),
        gpu_compute_capability=min(computes, default="", key=_version),
        capability=capability(sight),
    )


def _counted(sight: Sight) -> list[Gpu]:
    vendor = gpu_vendor(sight)
    return [gpu for gpu in sight.gpus if gpu.vendor == vendor]


def _with_cuda(word: str, sight: Sight) -> str:
    newest = next((major for major in (13, 12) if major in sight.cuda), None)
    return f"{word}-cuda-{newest}" if newest else word


def _version(words: str) -> tuple[int, ...]:
    return tuple(int(part) for part in words.split(".") if part.isdigit())


# looking ------------------------------------------------------------------------------------------------------


def look(root: Path = Path("/"), environment: Mapping[str, str] = os.environ) -> Sight:
    """This machine, now: NVML where there is NVIDIA's driver, else sysfs; `root` may be a recorded tree."""
    memory = psutil.virtual_memory()
    gpus = _nvml() if root == Path("/") else []
    listed = _drm(root / "sys/class/drm")
    seen = {gpu.vendor for gpu in gpus}
    return Sight(
        system=platform.system().lower(),
        machine=platform.machine().lower(),
        gpus=(*gpus, *(gpu for gpu in listed if gpu.vendor not in seen)),
        cuda=tuple(major for major in (12, 13) if (root / f"usr/local/cuda-{major}").is_dir()),
        total_ram=memory.total,
        available_ram=memory.available,
        is_tegra=(root / "etc/nv_tegra_release").exists(),
        forced=_forced(root, environment),
    )


def _forced(root: Path, environment: Mapping[str, str]) -> str:
    if word := environment.get(_FORCED, "").strip():
        return word
    file = root / environment.get(_RUN_FILE, _DEFAULT_RUN_FILE).lstrip("/")
    try:
        return file.read_text().strip()
    except OSError:
        return ""


def _drm(folder: Path) -> list[Gpu]:
    """Cards as the kernel lists them; AMD's and newer Intel drivers tell their memory."""
    found = []
    for card in sorted(folder.glob("card[0-9]*/device")):
        vendor = _VENDORS.get(_word(card / "vendor"), "")
        if vendor:
            total, used = _number(card / "mem_info_vram_total"), _number(card / "mem_info_vram_used")
            found.append(Gpu(vendor, total=total, free=max(total - used, 0)))
    return found


def _word(file: Path) -> str:
    try:
        return file.read_text().strip()
    except OSError:
        return ""


def _number(file: Path) -> int:
    word = _word(file)
    return int(word) if word.isdigit() else 0


class _Memory(ctypes.Structure):
    _fields_ = (("total", ctypes.c_ulonglong), ("free", ctypes.c_ulonglong), ("used", ctypes.c_ulonglong))


def _nvml() -> list[Gpu]:
    """NVIDIA's own library, if the driver has brought it; nothing else is needed."""
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
