"""`perdure`, tied to the demo that started it: `python -m perdure.cli.demo.tied worker …`. Started by `crew`.

The demo kills its workers itself, unless it was killed and cannot. Then the kernel closes its end of the pipe that is
our standard input, and into which nobody ever writes.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
from typing import NoReturn


def main() -> NoReturn:
    # Before anything else is imported: the demo may be gone already, and reading says so at once.
    threading.Thread(target=_end_with_the_demo, args=(sys.stdin.fileno(),), name="tie", daemon=True).start()
    from perdure.cli.main import main as perdure

    perdure()


def _end_with_the_demo(line: int) -> None:
    """On the spot: nobody is left to read what is finished. Processes of handlers end with their worker."""
    os.read(line, 1)
    os.kill(os.getpid(), signal.SIGKILL)


if __name__ == "__main__":
    main()
