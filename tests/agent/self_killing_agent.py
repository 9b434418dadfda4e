"""`python -m tests.agent.self_killing_agent`: an agent that kills itself right after one change of its disk.

`DIES_AFTER=rename:*/current` is kill -9 after the first rename whose target matches.
"""

import os
import signal
from fnmatch import fnmatch
from pathlib import Path

from nodesmith.agent import main
from nodesmith.agent.disk.durable_files import Disk


def _die_after(word: str) -> None:
    _, _, pattern = word.partition(":")
    rename = Disk.rename

    def rename_and_die(self: Disk, old: Path, new: Path) -> None:
        rename(self, old, new)
        if fnmatch(str(new), pattern):
            os.kill(os.getpid(), signal.SIGKILL)

    Disk.rename = rename_and_die  # type: ignore[method-assign]


if __name__ == "__main__":
    _die_after(os.environ["DIES_AFTER"])
    main.main()
