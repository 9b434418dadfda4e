"""Validation of labels, and automatic labels."""

import pytest

from nodesmith.domain.labels import automatic_labels, complaint, vram_bucket

GB, GIB = 10**9, 2**30


@pytest.mark.parametrize(
    ("labels", "named"),
    [
        ({"": "x"}, "key ''"),
        ({"k" * 129: "x"}, "129 characters"),
        ({"zone": "v" * 256}, "value of zone"),
        ({"zone": "a\nb"}, "value of zone"),
        ({"zone a": "x"}, "'zone a'"),
        ({"zone=": "x"}, "'zone='"),
        ({"-zone": "x"}, "'-zone'"),
        ({"a,b": "x"}, "'a,b'"),
        ({f"k{number}": "" for number in range(201)}, "200 labels"),
    ],
)
def test_labels_out_of_range_are_named(labels: dict[str, str], named: str) -> None:
    """R5: keys up to 128, values up to 255 characters."""
    assert named in (complaint(labels) or "")


def test_labels_up_to_the_limits_are_fine() -> None:
    """R5."""
    assert complaint({"k" * 128: "v" * 255, "example.com/tier": "", "zone": "Zürich, left"}) is None


@pytest.mark.parametrize(
    ("total_vram", "bucket"),
    [
        *((80 * GIB, "80GB+"), (141 * GB, "80GB+"), (49140 * 2**20, "48GB"), (40 * GIB, "24GB"), (24 * GIB, "24GB")),
        *(
            (24564 * 2**20, "24GB"),
            (16 * GIB, "16GB"),
            (12 * GIB, "8GB"),
            (8 * GIB, "8GB"),
            (6 * GIB, "6GB"),
            (1, "0GB"),
        ),
    ],
)
def test_vram_label_is_the_marketed_size(total_vram: int, bucket: str) -> None:
    """R77: 80GB+, 48GB, 24GB, 16GB, 8GB, else exact."""
    assert vram_bucket(total_vram) == bucket


def test_automatic_labels_follow_from_the_facts() -> None:
    """R77."""
    assert automatic_labels(name="n1", gpu_vendor="nvidia", total_vram=24 * GIB, slots=4) == {
        "gpu.vendor": "nvidia",
        "gpu.vram": "24GB",
        "node.name": "n1",
        "node.replica-slots": "4",
    }
    assert automatic_labels(name="n1", gpu_vendor="", total_vram=0, slots=0) == {
        "node.name": "n1",
        "node.replica-slots": "1",
    }
