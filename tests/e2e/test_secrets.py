"""Whatever a run leaves behind, and whatever goes wrong on its way, no secret is in it: objects, outputs, the ledger, logs of client,
worker and emulator, webhooks, answers of jobs, command lines."""

from __future__ import annotations

import http.server
import json
import threading
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from emulator.emulator import Identity
from emulator.files import write_private
from tests.e2e.house import (
    PER_SHARD,
    Gate,
    House,
    config_of,
    echo_endpoint,
    eventually,
    leaks_in_files,
    leaks_in_objects,
    leaks_in_processes,
    question_rows,
    secrets_in,
    standing,
)

pytestmark = pytest.mark.slow

IDENTITY = Identity(
    api_key="rpa_CANARY0APIKEY0OF0THE0CLIENT0",
    worker_key="wrk_CANARY0KEY0OF0THE0WORKER0PLANE",
    s3_access="canaryaccessclient",
    s3_secret="rps_canary/secret+of=the;client",
    worker_s3_access="canaryaccessworker",
    worker_s3_secret="rps_canary/secret+of=the;worker",
)
SECRETS = [value for name in IDENTITY.__struct_fields__ if isinstance(value := getattr(IDENTITY, name), str)]  # the others are ports


@pytest.fixture(scope="module")
def marked(tmp_path_factory: pytest.TempPathFactory) -> Iterator[House]:
    """A house whose secrets can be told from everything else."""
    home = tmp_path_factory.mktemp("marked")
    gate = Gate(home / "gate")
    (home / "local").mkdir(mode=0o700)
    write_private(home / "local" / "identity.json", msgspec.json.encode(IDENTITY))
    endpoints = (echo_endpoint("echo", "generate", gate.folder), echo_endpoint("vec", "embed", gate.folder))
    with standing(House(home, config_of(home, *endpoints), gate)) as house:
        yield house


class Ear:
    """Receives webhooks in the client's place and keeps what came."""

    def __init__(self) -> None:
        heard = self.heard = []  # type: list[bytes]

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                head = f"{self.path}\n{self.headers}".encode()
                heard.append(head + self.rfile.read(int(self.headers["Content-Length"])))
                self.send_response(200)
                self.end_headers()

            def log_message(self, format: str, *args: object) -> None:
                """Say nothing."""

        self._server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}"
        self._thread = threading.Thread(target=self._server.serve_forever)

    def __enter__(self) -> Ear:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()


def test_the_search_finds_what_it_looks_for(tmp_path: Path) -> None:
    """Otherwise the tests below would pass whatever happens."""
    shapes = (SECRETS[0], f"x{SECRETS[3]}y", "cnBzX2NhbmFyeS9zZWNyZXQrb2Y9dGhlO2NsaWVudA==", "rps_canary%2Fsecret%2Bof%3Dthe%3Bclient")
    for n, text in enumerate(shapes):
        (tmp_path / f"{n}.log").write_text(text)
    assert len(leaks_in_files(tmp_path, SECRETS)) == 4
    keeper = tmp_path / "facts.json"
    keeper.write_text("nothing")
    keeper.chmod(0o644)
    assert len(leaks_in_files(tmp_path, SECRETS)) == 5


def test_no_secret_is_in_anything_that_runs_leave_behind(marked: House, tmp_path: Path) -> None:
    house, logs = marked, tmp_path / "said"
    said: list[str] = []

    def run(*arguments: str | Path, code: int, env: dict[str, str] | None = None) -> None:
        done = house.cli(*arguments, env=env)
        assert done.code == code, done.err
        said.append(done.out + done.err)

    # a run with failed rows whose client hears no webhook, because we hear them
    rows, out = tmp_path / "rows.jsonl", tmp_path / "out.jsonl"
    question_rows(rows, 2 * PER_SHARD)
    with rows.open("a") as file:
        file.write('{"custom_id": "bad", "method": "POST", "url": "/v1/chat/completions", "body": {"messages": "none"}}\n')
    command = ("run", rows, "--task", "generate", "--model", "echo", "--out", out)
    with Ear() as ear:
        house.gate.reset(0)
        started = house.start(*command, "--webhook-url", ear.url)
        eventually(lambda: house.gate.came >= 2, "two shards have reached the engine")
        assert leaks_in_processes(SECRETS) == []
        house.gate.open()
        done = started.said()
        assert done.code == 1, done.err
        said.append(done.out + done.err)
        eventually(lambda: len(ear.heard) >= len(house.gate.jobs), "every job's webhook has come")
        jobs = house.gate.jobs
    for body in ear.heard:
        assert secrets_in(body, SECRETS) == []
        assert b'"input"' in body, "RunPod echoes the input"
        assert b"s3Config" not in body

    # answers of the jobs, as RunPod keeps them
    for job in jobs:
        request = urllib.request.Request(f"{house.stack.facts.api_url}/echo/status/{job['id']}")
        request.add_header("Authorization", f"Bearer {IDENTITY.api_key}")
        with urllib.request.urlopen(request, timeout=10) as answer:
            assert secrets_in(answer.read(), SECRETS) == []

    # an embed run, and the commands around it
    texts = tmp_path / "texts.csv"
    texts.write_text("id,text\n" + "".join(f"{n},some text {n}\n" for n in range(40)))
    vectors = tmp_path / "vectors.parquet"
    run("run", texts, "--task", "embed", "--model", "vec", "--column", "text", "--id-column", "id", "--out", vectors, "--json", code=0)
    (name,) = (run for run in house.runs() if "embed" in run)
    for look in (("status", name, "--json"), ("verify", name), ("runs",), ("local", "status"), ("cancel", name)):
        run(*look, code=0)

    # wrong keys: what RunPod and S3 say about them, and what the client makes of that (S3's own log names a key that it does not know)
    elsewhere = house.elsewhere(tmp_path / "elsewhere")
    for wrong in ("RUNPOD_API_KEY", "NIGHTBATCH_S3_SECRET_ACCESS_KEY", "NIGHTBATCH_S3_ACCESS_KEY_ID"):
        env = {**elsewhere, wrong: "canary0wrong0key0of0somebody"}
        rest = question_rows(tmp_path / "wrong.jsonl", 8, text="{n}?")
        planned = json.loads(house.cli("plan", rest, "--task", "generate", "--model", "echo", "--json").out)["run"]
        run("resume", planned, "--json", code=3, env=env)

    logs.mkdir()
    (logs / "commands").write_text("".join(said))
    secrets = [*SECRETS, "canary0wrong0key0of0somebody"]
    assert leaks_in_objects(house, secrets) == []
    assert leaks_in_files(tmp_path, secrets) == []
    assert leaks_in_files(house.home / "commands", secrets) == []
    assert leaks_in_files(house.home, SECRETS) == []
    assert list((house.state / "logs").rglob("*.log")), "there were logs of workers to search"
    assert (house.home / "ledger.sqlite3").exists()
