"""Writes the generated parts of README.md: the help of every command, the reasons of the validator (``make readme``)."""

import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

README = Path(__file__).parents[2] / "README.md"


def help_text(tool: str, *command: str) -> str:
    """``tool command --help``, as a user sees it."""
    code = f"import sys; sys.argv = {[tool, *command, '--help']!r}\nfrom {tool}.cli import main\nmain()"
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.strip()


def commands(tool: str, *above: str) -> Iterator[tuple[str, ...]]:
    """Every command of a tool, sub-commands in place of their group."""
    _, found, listed = help_text(tool, *above).partition("Commands:")
    if not found:
        yield above
    for name in re.findall(r"^  (\S+)", listed, flags=re.MULTILINE):
        yield from commands(tool, *above, name)


def section() -> str:
    """The commands of both tools."""
    parts = [
        "```\n" + help_text(tool, *command) + "\n```"
        for tool in ("benchkit", "validator")
        for command in commands(tool)
    ]
    return "<!-- commands -->\n\n" + "\n\n".join(parts) + "\n\n<!-- end of commands -->"


def reasons() -> str:
    """The table of all reason codes: what each means, and what to do."""
    from validator.reasons import Reason

    rows = [f"| `{reason.value}` | {reason.meaning} | {reason.remedy} |" for reason in Reason]
    return "\n".join(
        ["<!-- reasons -->", "", "| code | means | what to do |", "|---|---|---|", *rows, "", "<!-- end of reasons -->"]
    )


def generated(text: str) -> str:
    """The text of README.md with all generated parts as they must be."""
    for name, part in (("commands", section()), ("reasons", reasons())):
        pattern = rf"<!-- {name} -->(.*?<!-- end of {name} -->)?"
        text = re.sub(pattern, lambda _, part=part: part, text, count=1, flags=re.DOTALL)  # type: ignore[misc]
    return text


def main() -> None:
    """Replace the generated parts of README.md."""
    README.write_text(generated(README.read_text("utf-8")), "utf-8")


if __name__ == "__main__":
    main()
