"""Deletion of trees that other people's code filled."""

import os
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from nodesmith.agent.disk.tree_removal import remove_tree
from nodesmith.agent.run.confinement import Confinement

DEPTH = 1500


def deep(folder: Path, depth: int = DEPTH) -> None:
    """Create folders in folders, as a backend can in its scratch folder."""
    folder.mkdir(parents=True, exist_ok=True)
    current = os.open(folder, os.O_RDONLY)
    for number in range(depth):
        os.close(os.open(f"file-{number}", os.O_CREAT | os.O_WRONLY, dir_fd=current))
        os.mkdir("d", dir_fd=current)
        below = os.open("d", os.O_RDONLY, dir_fd=current)
        os.close(current)
        current = below
    os.close(current)


def test_scratch_that_a_backend_made_too_deep_is_deleted(tmp_path: Path):
    """`shutil.rmtree` raises RecursionError here, which would end the agent at each of its starts."""
    deep(tmp_path / "scratch" / "gone" / "home")
    Confinement(home=tmp_path).prune_scratch(set())
    assert not (tmp_path / "scratch" / "gone").exists()


def test_few_descriptors_are_enough(tmp_path: Path):
    deep(tmp_path / "tree")
    program = (
        "import resource, sys; from pathlib import Path; from nodesmith.agent.disk.tree_removal import remove_tree;"
        "resource.setrlimit(resource.RLIMIT_NOFILE, (64, 64)); remove_tree(Path(sys.argv[1]))"
    )
    subprocess.run([sys.executable, "-c", program, str(tmp_path / "tree")], check=True)
    assert not (tmp_path / "tree").exists()


def test_links_are_deleted_and_not_followed(tmp_path: Path):
    outside = tmp_path / "outside"
    outside.mkdir(mode=0o755)
    (outside / "kept").write_text("kept")
    tree = tmp_path / "tree"
    (tree / "below").mkdir(parents=True)
    (tree / "link").symlink_to(outside)
    (tree / "below" / "link").symlink_to(outside)
    (tree / "below" / "dangling").symlink_to("nowhere")
    remove_tree(tree)
    assert not tree.exists()
    assert (outside / "kept").read_text() == "kept"
    assert stat.S_IMODE(outside.stat().st_mode) == 0o755


def test_root_that_is_a_link_is_not_followed(tmp_path: Path):
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "kept").touch()
    (tmp_path / "link").symlink_to(outside)
    remove_tree(tmp_path / "link")
    assert (outside / "kept").exists()


def test_folders_without_permissions_are_deleted(tmp_path: Path):
    """A backend of the agent's own user may take every permission from its folders."""
    for name in ("a", "b"):
        (tmp_path / "tree" / name / "below").mkdir(parents=True)
        (tmp_path / "tree" / name / "below" / "file").touch()
    for folder in ("tree/a/below", "tree/b/below", "tree/a"):
        (tmp_path / folder).chmod(0)
    remove_tree(tmp_path / "tree")
    assert not (tmp_path / "tree").exists()


@pytest.mark.parametrize("name", ["missing", "file"])
def test_what_is_no_folder_is_left_alone(tmp_path: Path, name: str):
    (tmp_path / "file").touch()
    remove_tree(tmp_path / name)
    assert (tmp_path / "file").exists()
