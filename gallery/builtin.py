"""The built-in gallery: small real backends that are part of Nodesmith, so that a first install needs no network."""

import dataclasses
from pathlib import Path, PurePosixPath

from nodesmith.gallery.archive_packing import digest, pack
from nodesmith.gallery.catalogue import Catalogue
from nodesmith.gallery.entries import Entry
from nodesmith.gallery.index import read_index

NAME = "builtin"
ROUTE = "/artifacts"
"""the path at which the API serves the folder: /artifacts/echo-1.tar.gz"""

_SOURCES = Path(__file__).parent / "builtin_backends"


class BuiltinGallery:
    """Packs its backends into `folder` at first use; every replica produces the same bytes."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def catalogue(self) -> Catalogue:
        """Pack the backends of the index, and return them with digests and sizes."""
        self.folder.mkdir(parents=True, exist_ok=True)
        index = (_SOURCES / "index.yaml").read_text()
        return Catalogue(self._packed(entry) for entry in read_index(index, NAME).entries)

    def _packed(self, entry: Entry) -> Entry:
        name, version = entry.artifact.name, entry.artifact.version
        archive = self.folder / PurePosixPath(entry.artifact.uri).name
        pack([_SOURCES / name / "shared", _SOURCES / name / version], archive)
        artifact = dataclasses.replace(entry.artifact, sha256=digest(archive), size=archive.stat().st_size)
        return dataclasses.replace(entry, artifact=artifact)
