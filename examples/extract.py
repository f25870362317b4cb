# examples: rebuilds the example data from Debian packages. Not needed to use it: the result is committed beside this file.
"""Make texts.jsonl, questions.csv and chat-batch.jsonl again and check them against the digests in PROVENANCE.md.

    python3 examples/extract.py FOLDER      FOLDER holds the four .deb files named below (apt-get download PACKAGE)

Needs Python 3.11+ and dpkg-deb. Nothing is written by hand: every text is taken as it stands in the package.
"""

from __future__ import annotations

import csv
import hashlib
import html
import io
import json
import re
import subprocess
import sys
import tempfile
from itertools import pairwise
from pathlib import Path

HERE = Path(__file__).resolve().parent
PACKAGES = {
    "wordnet-base": "1:3.0-37",
    "python3.11-doc": "3.11.2-6+deb12u9",
    "sqlite3-doc": "3.40.1-2+deb12u2",
    "perl-doc": "5.36.0-7+deb12u4",
}
TEXTS = 2400
PARTS_OF_SPEECH = {"noun": "n", "verb": "v", "adj": "a", "adv": "r"}
# WordNet's lexicographer files by number (its manual page lexnames(5)).
# fmt: off
TOPICS = (
    "adj.all", "adj.pert", "adv.all", "noun.Tops", "noun.act", "noun.animal", "noun.artifact", "noun.attribute",
    "noun.body", "noun.cognition", "noun.communication", "noun.event", "noun.feeling", "noun.food", "noun.group",
    "noun.location", "noun.motive", "noun.object", "noun.person", "noun.phenomenon", "noun.plant", "noun.possession",
    "noun.process", "noun.quantity", "noun.relation", "noun.shape", "noun.state", "noun.substance", "noun.time",
    "verb.body", "verb.change", "verb.cognition", "verb.communication", "verb.competition", "verb.consumption",
    "verb.contact", "verb.creation", "verb.emotion", "verb.motion", "verb.perception", "verb.possession",
    "verb.social", "verb.stative", "verb.weather", "adj.ppl",
)
# fmt: on
SHORTEST, LONGEST = 60, 200  # characters of a definition: a sentence, and safely under 64 tokens


def definitions(wordnet: Path) -> list[dict[str, str]]:
    """TEXTS definitions, evenly spread over WordNet, in its own order."""
    found: list[dict[str, str]] = []
    seen: set[str] = set()
    for name, letter in PARTS_OF_SPEECH.items():
        for line in (wordnet / f"data.{name}").read_text("ascii").splitlines():
            if line.startswith(" "):
                continue  # the licence at the head of each file
            fields, gloss = line.split(" | ", 1)
            offset, topic, _, _, word = fields.split(" ")[:5]
            text = re.split(r'; "', gloss, maxsplit=1)[0].strip()  # the definition without its example sentences
            if SHORTEST <= len(text) <= LONGEST and text not in seen:
                seen.add(text)
                word = re.sub(r"\(\w+\)$", "", word).replace("_", " ")
                found.append({"id": f"{letter}{offset}", "text": text, "word": word, "topic": TOPICS[int(topic)]})
    return [found[index * len(found) // TEXTS] for index in range(TEXTS)]


def questions(python_faq: Path, sqlite_faq: Path, perl_faq: Path) -> list[dict[str, str]]:
    """The questions of three projects' lists of frequently asked questions, in the order of the documents."""
    found: list[dict[str, str]] = []
    seen: set[str] = set()

    def add(source: str, title: str) -> None:
        text = " ".join(title.replace("``", "").split())
        text = re.sub(r":\w+:`([^`<]*?)(?:\s*<[^>]*>)?`", r"\1", text).replace("\\", "").strip()
        if text.endswith("?") and len(text) <= 140 and text not in seen:
            seen.add(text)
            found.append({"id": f"{source}-{len(found) + 1:03}", "question": text, "source": source})

    for document in sorted(python_faq.glob("*.rst.txt")):
        lines = document.read_text("utf-8").splitlines()
        for title, underline in pairwise(lines):
            if title.strip() and re.fullmatch(r"[-=~^'\"]{3,}", underline):
                add("python", title)
    for title in re.findall(r'<li[^>]*><a href="#q\d+">(.*?)</a>', sqlite_faq.read_text("utf-8"), re.DOTALL):
        add("sqlite", html.unescape(re.sub(r"<[^>]*>", "", title)))
    # The first chapter, general questions; the later ones go into code.
    for title in re.findall(r"^=head2 (.*)$", (perl_faq / "perlfaq1.pod").read_text("utf-8"), re.MULTILINE):
        if "<" not in title:
            add("perl", title)
    return found


def as_lines(rows: list[dict[str, object]]) -> bytes:
    return "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows).encode()


def main() -> int:
    folder = Path(sys.argv[1])
    with tempfile.TemporaryDirectory() as scratch:
        for package in PACKAGES:
            (deb,) = folder.glob(f"{package}_*.deb")
            version = subprocess.check_output(["dpkg-deb", "-f", str(deb), "Version"], text=True).strip()
            if version != PACKAGES[package]:
                print(f"note: {package} {version} instead of {PACKAGES[package]}; the digests may differ")
            subprocess.run(["dpkg-deb", "-x", str(deb), scratch], check=True)
        share = Path(scratch) / "usr/share"
        texts = definitions(share / "wordnet")
        asked = questions(share / "doc/python3.11/html/_sources/faq", share / "doc/sqlite3/faq.html", *share.glob("perl/5.*/pod"))
    table = io.StringIO(newline="")
    writer = csv.DictWriter(table, ["id", "question", "source"], lineterminator="\n")
    writer.writeheader()
    writer.writerows(asked)
    batch: list[dict[str, object]] = [
        {
            "custom_id": row["id"],
            "method": "POST",
            "url": "/v1/chat/completions",
            "body": {
                "model": "smollm2",
                "messages": [
                    {"role": "system", "content": "Answer in one sentence."},
                    {"role": "user", "content": row["question"]},
                ],
                "max_tokens": 24,
                "temperature": 0,
            },
        }
        for row in asked[:20]
    ]
    contents = {
        "texts.jsonl": as_lines([dict(row) for row in texts]),
        "questions.csv": table.getvalue().encode(),
        "chat-batch.jsonl": as_lines(batch),
    }
    provenance = (HERE / "PROVENANCE.md").read_text("utf-8")
    for name, content in contents.items():
        (HERE / name).write_bytes(content)
        digest = hashlib.sha256(content).hexdigest()
        known = "as in PROVENANCE.md" if digest in provenance else "NOT in PROVENANCE.md"
        print(f"{name}: {len(content.splitlines())} lines, {len(content)} bytes, sha256 {digest}, {known}")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
