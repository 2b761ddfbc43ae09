"""Writes the generated parts of README.md: the help of every command (``make readme``)."""

import re
import subprocess
import sys
from pathlib import Path

README = Path(__file__).parents[2] / "README.md"


def help_text(tool: str, *command: str) -> str:
    """``tool command --help``, as a user sees it."""
    code = f"import sys; sys.argv = {[tool, *command, '--help']!r}\nfrom {tool}.cli import main\nmain()"
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.strip()


def section() -> str:
    """The commands of both tools."""
    parts = []
    for tool in ("benchkit", "validator"):
        overview = help_text(tool)
        names = re.findall(r"^  (\S+)", overview[overview.index("Commands:") :], flags=re.MULTILINE)
        parts += ["```\n" + help_text(tool, name) + "\n```" for name in names]
    return "<!-- commands -->\n\n" + "\n\n".join(parts) + "\n\n<!-- end of commands -->"


def main() -> None:
    """Replace the section in README.md."""
    text = README.read_text("utf-8")
    pattern = r"<!-- commands -->(.*?<!-- end of commands -->)?"
    README.write_text(re.sub(pattern, lambda _: section(), text, count=1, flags=re.DOTALL), "utf-8")


if __name__ == "__main__":
    main()
