"""The start of a process, as the stack starts it: `python -m runtime.begin api.main`."""

import gc
import importlib
import sys


def main() -> None:
    """Nothing of what a start imports is garbage: looking for some meanwhile takes a fifth of it."""
    gc.disable()
    begun = importlib.import_module(sys.argv[1])
    gc.freeze()
    gc.enable()
    begun.main()


if __name__ == "__main__":
    main()
