"""Run a command and draw what it printed as an SVG picture of a terminal.

    python docs/render_terminal.py docs/images/train.svg mileage train ppo CartPole-v1 --seeds 5

Both streams are shown in the order they were written. The picture is self-contained: no font is loaded, no script runs.
"""

from __future__ import annotations

import io
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

from rich.console import Console
from rich.text import Text

WIDTH = 92


def run(command: list[str]) -> str:
    """What `command` prints, with its colours."""
    environment = os.environ | {"FORCE_COLOR": "1", "COLUMNS": str(WIDTH), "TERM": "xterm-256color"}
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, env=environment, check=False)
    return done.stdout.decode()


def picture(shown: str, output: str) -> str:
    """The terminal after typing `shown` and getting `output`, as SVG."""
    console = Console(record=True, width=WIDTH, file=io.StringIO(), force_terminal=True, highlight=False)
    console.print(Text.assemble(("$ ", "bold green"), (shown, "bold")))
    console.print(Text.from_ansi(output.rstrip()))
    svg = console.export_svg(title="mileage", unique_id="terminal")
    # The fonts would come from somebody else's server; the reader's own monospace font will do.
    svg = re.sub(r"@font-face \{.*?\}\s*", "", svg, flags=re.DOTALL)
    svg = svg.replace("Fira Code, monospace", "ui-monospace, Menlo, Consolas, 'DejaVu Sans Mono', monospace")
    return "\n".join(line.rstrip() for line in svg.splitlines()) + "\n"


def typed(command: list[str]) -> str:
    """The command as one would type it."""
    return " ".join(f'"{word}"' if shlex.quote(word) != word else word for word in command)


def main() -> None:
    """Draw the command of the command line."""
    target, *command = sys.argv[1:]
    Path(target).write_text(picture(typed(command), run(command)))
    print(f"wrote {target}")


if __name__ == "__main__":
    main()
