#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Programs that have never heard of sherd read what it writes.

  clients_test.py SHERD PRINT_LOGITS SCRATCH

safetensors opens every file of a checkpoint; transformers loads an exported
GPT-2 and a Llama and has the same logits, within 1e-4, and the same greedy text;
PyTorch's distributed checkpoint reads what was merged.
Exit status 77, a counted skip, where these packages are not installed
(scripts/setup puts them into build/clients, where it can).
"""

import json
import pathlib
import shutil
import subprocess
import sys

EXIT_SKIPPED = 77
TOLERANCE = 1e-4
TOKENS = 16
ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
sys.path.insert(0, str(ROOT / "build" / "clients"))
LAYERS, WIDTH, HEADS, SEQUENCE = 2, 64, 4, 32
KV_HEADS = {"gpt": 0, "llama": 2}


def run(*words):
    done = subprocess.run(
        [str(word) for word in words], capture_output=True, text=True, check=False
    )
    if done.returncode != 0:
        sys.exit(f"{words} ended with {done.returncode}:\n{done.stdout}{done.stderr}")
    return done.stdout


def train(sherd, family, folder):
    shutil.rmtree(folder, ignore_errors=True)
    run(
        sherd, "run", "-n", 2, "--", sherd, "train", "--model", family,
        "--steps", 20, "--layers", LAYERS, "--width", WIDTH, "--heads", HEADS,
        "--kv-heads", KV_HEADS[family], "--seq", SEQUENCE, "--save-every", 20,
        "--data", ROOT / "LICENSE", "--sample-tokens", 0, "--run", folder,
    )  # fmt: skip


def compare(sherd, print_logits, family, scratch):
    import torch
    from safetensors import safe_open
    from transformers import AutoModelForCausalLM

    folder = scratch / family
    train(sherd, family, folder)
    step = folder / "checkpoints" / "step-20"
    files = sorted(step.glob("*.safetensors"))
    assert files, step
    for file in files:
        with safe_open(file, framework="pt") as opened:
            for name in opened.keys():
                assert torch.isfinite(opened.get_tensor(name)).all(), name
    exported = folder / "exported"
    run(sherd, "checkpoint", "export", folder, exported)
    model = AutoModelForCausalLM.from_pretrained(exported).eval()
    assert json.loads((exported / "config.json").read_text())["vocab_size"] == 256

    shown = run(
        print_logits, step, family, LAYERS, WIDTH, HEADS, KV_HEADS[family],
        SEQUENCE, TOKENS,
    ).split("\n")  # fmt: skip
    ours = torch.tensor([float(line) for line in shown if line and line[0] != "t"])
    ids = torch.tensor([[(37 * i + 65) % 256 for i in range(TOKENS)]])
    with torch.no_grad():
        theirs = model(ids).logits.reshape(-1)
    difference = (ours - theirs).abs().max().item()
    print(f"{family}: largest difference of logits {difference:.2e}")
    assert difference < TOLERANCE, difference
    ours = [int(line.split()[1]) for line in shown if line.startswith("token")]
    with torch.no_grad():
        theirs = ids
        for _ in range(12):
            likeliest = model(theirs).logits[0, -1].argmax()
            theirs = torch.cat([theirs, likeliest.view(1, 1)], dim=1)
    theirs = theirs[0].tolist()
    assert ours == theirs[-len(ours) :], (ours, theirs)
    import_again(sherd, model, folder, exported)


def import_again(sherd, model, folder, exported):
    """What save_pretrained writes trains on, and comes out as it went in."""
    saved, run_folder = folder / "saved", folder / "imported"
    model.save_pretrained(saved, max_shard_size="100KB")
    run(sherd, "checkpoint", "import", saved, run_folder)
    run(sherd, "checkpoint", "export", run_folder, folder / "again")
    before = (exported / "model.safetensors").read_bytes()
    assert before == (folder / "again" / "model.safetensors").read_bytes()
    run(
        sherd, "run", "-n", 2, "--", sherd, "train", "--config",
        run_folder / "config.json", "--steps", 2, "--data", ROOT / "LICENSE",
        "--sample-tokens", 0,
    )  # fmt: skip
    first = json.loads((run_folder / "metrics.jsonl").read_text().split("\n")[0])
    assert first["loss"] < 4.5, first  # Of untrained ones: 5.5.


def read_by_pytorch(sherd, folder):
    """torch.distributed.checkpoint's reader of safetensors has the same tensors."""
    import torch
    from safetensors.torch import load_file
    from torch.distributed import checkpoint

    merged = folder / "merged"
    run(sherd, "checkpoint", "merge", folder, merged)
    expected = {}
    for file in merged.glob("*.safetensors"):
        expected.update(load_file(file))
    found = {name: torch.zeros_like(tensor) for name, tensor in expected.items()}
    checkpoint.load(
        found, storage_reader=checkpoint.HuggingFaceStorageReader(path=str(merged))
    )
    assert len(found) > 50, len(found)
    for name, tensor in expected.items():
        assert torch.equal(found[name], tensor), name
    plain = torch.jit.load(archived(sherd, folder))
    for name, tensor in plain.named_parameters():
        assert torch.equal(tensor, expected[name]), name


def archived(sherd, folder):
    run(sherd, "checkpoint", "merge", "--torch", folder, folder / "archives")
    return str(folder / "archives" / "model.pt")


def main():
    if len(sys.argv) != 4:
        sys.exit(__doc__)
    try:
        import safetensors  # noqa: F401
        import transformers  # noqa: F401
    except ImportError as missing:
        print(f"skipped: {missing}")
        sys.exit(EXIT_SKIPPED)
    for family in ("gpt", "llama"):
        compare(sys.argv[1], sys.argv[2], family, pathlib.Path(sys.argv[3]))
    read_by_pytorch(sys.argv[1], pathlib.Path(sys.argv[3]) / "gpt")


if __name__ == "__main__":
    main()
