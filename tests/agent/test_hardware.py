"""Hardware detection, replayed from recorded machines, in LocalAI's order."""

import json
from pathlib import Path

import pytest

from nodesmith.agent.hardware import Gpu, HardwareReading, read_hardware, resources_of
from nodesmith.agent.machine import resources

MACHINES = sorted((Path(__file__).parent / "machines").glob("*.json"))


@pytest.mark.parametrize("file", MACHINES, ids=lambda file: file.stem)
def test_a_recorded_machine_is_judged_as_localai_would(file: Path):
    recorded = json.loads(file.read_text())
    gpus = tuple(Gpu(**gpu) for gpu in recorded["sight"].pop("gpus", []))
    sight = HardwareReading(**recorded["sight"] | {"gpus": gpus, "cuda": tuple(recorded["sight"].get("cuda", ()))})
    found = resources_of(sight).model_dump()
    assert {name: found[name] for name in recorded["resources"]} == recorded["resources"]


def card(root: Path, number: int, vendor: str, **memory: int) -> None:
    device = root / f"sys/class/drm/card{number}/device"
    device.mkdir(parents=True)
    (device / "vendor").write_text(f"{vendor}\n")
    for name, size in memory.items():
        (device / name).write_text(f"{size}\n")


def test_cards_and_their_memory_are_read_from_sysfs(tmp_path: Path):
    card(tmp_path, 0, "0x1a03")
    card(tmp_path, 1, "0x1002", mem_info_vram_total=16 * 1024**3, mem_info_vram_used=1024**3)
    (tmp_path / "sys/class/drm/card1-HDMI-A-1").mkdir()
    assert read_hardware(tmp_path, {}).gpus == (Gpu("amd", 16 * 1024**3, 15 * 1024**3),)


def test_cuda_and_jetson_are_found_by_their_files(tmp_path: Path):
    assert (read_hardware(tmp_path, {}).cuda, read_hardware(tmp_path, {}).is_tegra) == ((), False)
    (tmp_path / "usr/local/cuda-12").mkdir(parents=True)
    (tmp_path / "etc").mkdir()
    (tmp_path / "etc/nv_tegra_release").write_text("# R36")
    assert (read_hardware(tmp_path, {}).cuda, read_hardware(tmp_path, {}).is_tegra) == ((12,), True)


def test_the_environment_goes_before_the_run_file(tmp_path: Path):
    (tmp_path / "run/localai").mkdir(parents=True)
    (tmp_path / "run/localai/capability").write_text("amd\n")
    assert read_hardware(tmp_path, {}).forced == "amd"
    assert read_hardware(tmp_path, {"LOCALAI_FORCE_META_BACKEND_CAPABILITY": "intel"}).forced == "intel"
    elsewhere = {"LOCALAI_FORCE_META_BACKEND_CAPABILITY_RUN_FILE": "/run/none"}
    assert read_hardware(tmp_path, elsewhere).forced == ""


def test_this_machine_says_what_it_has(tmp_path: Path):
    found = resources(tmp_path)
    assert found.total_ram
    assert found.available_disk
    assert found.capability
    assert found.total_vram is not None
