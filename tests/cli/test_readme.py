"""The documents: commands exist with the options that they name, and links lead somewhere. tests/e2e/test_readme.py runs the examples."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
DOCUMENTS = ["README.md", *(f"docs/{path.name}" for path in sorted((ROOT / "docs").glob("*.md")))]


def options_by_command() -> dict[str, set[str]]:
    """`run` -> its options, from docs/cli.md, which another test holds to the command line's own help."""
    sections = re.split(r"^### nightbatch (.+)$", (ROOT / "docs/cli.md").read_text(), flags=re.MULTILINE)[1:]
    return {name: set(re.findall(r"(?<![\w-])--?[a-z][a-z-]*", text)) for name, text in zip(sections[::2], sections[1::2], strict=True)}


def commands(text: str) -> list[list[str]]:
    """The words after `nightbatch` of each command: in blocks of shell lines, and in `code` that is a whole command."""
    found = []
    for block in re.findall(r"^```(?:console|bash|sh)?\n(.*?)^```", text, re.MULTILINE | re.DOTALL):
        lines = block.replace("\\\n", " ").splitlines()
        found += [line.removeprefix("$ ") for line in lines if re.match(r"(\$ )?(\./)?nightbatch ", line)]
    found += [line.strip() for line in re.findall(r"^ {4}(?:\./)?nightbatch .*$", text, re.MULTILINE)]
    found += re.findall(r"`((?:\./)?nightbatch [a-z][^`…]*)`", text)
    return [shlex.split(line, comments=True)[1:] for line in found]


def test_commands_are_found_in_blocks_and_in_sentences() -> None:
    text = "See `nightbatch stop dev`.\n```console\n$ ./nightbatch run a \\\n   --limit 5  # five\nits output\n```\n"
    text += "\n    nightbatch runs --json\n"
    assert commands(text) == [["run", "a", "--limit", "5"], ["runs", "--json"], ["stop", "dev"]]


@pytest.mark.parametrize("document", [name for name in DOCUMENTS if name != "docs/cli.md"])
def test_each_command_in_a_document_exists_with_its_options(document: str) -> None:
    known = options_by_command()
    assert {"run", "local up", "image pin", "stop"} <= set(known)
    for words in commands((ROOT / document).read_text()):
        if words[0].startswith("-"):
            continue
        name = next((" ".join(words[:most]) for most in (3, 2) if " ".join(words[:most]) in known), words[0])
        assert name in known, f"{document}: there is no `nightbatch {' '.join(words)}`"
        unknown = {word.partition("=")[0] for word in words if re.match(r"--?[a-z]", word)} - known[name]
        assert not unknown, f"{document}: `nightbatch {' '.join(words)}` has no {', '.join(sorted(unknown))}"


@pytest.mark.parametrize("document", DOCUMENTS)
def test_each_link_to_a_file_leads_to_one(document: str) -> None:
    text = re.sub(r"^```.*?^```", "", (ROOT / document).read_text(), flags=re.MULTILINE | re.DOTALL)
    for target in re.findall(r"\]\(([^)\s]+)\)", text):
        if not re.match(r"[a-z]+:", target):
            file, _, anchor = target.partition("#")
            path = (ROOT / document).parent / file if file else ROOT / document
            assert path.exists(), f"{document} links to {target}"
            if anchor:
                titles = re.findall(r"^#+ (.+)$", path.read_text(), re.MULTILINE)
                assert anchor in {re.sub(r"[^\w -]", "", title.lower()).replace(" ", "-") for title in titles}, f"{document}: {target}"
