#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""From text to a trained model by the command, and data that is not what it seems.

  train_test.py SHERD SCRATCH
"""

import json
import pathlib
import shutil
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent


def alphabet():
    """GPT-2's characters for the 256 bytes."""
    plain = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in plain]
    return {byte: chr(byte if byte in plain else 256 + others.index(byte)) for byte in range(256)}


def write_tokenizer(folder, merges=("t h", "th e")):
    folder.mkdir(parents=True)
    vocab = {character: byte for byte, character in alphabet().items()}
    for merge in merges:
        vocab[merge.replace(" ", "")] = len(vocab)
    vocab["<end>"] = len(vocab)
    (folder / "tokenizer.json").write_text(json.dumps({
        "added_tokens": [{"id": vocab["<end>"], "content": "<end>", "special": True}],
        "pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": False},
        "decoder": {"type": "ByteLevel"},
        "model": {"type": "BPE", "vocab": vocab, "merges": list(merges)},
    }))
    (folder / "tokenizer_config.json").write_text('{"eos_token": "<end>"}')


class Job:
    def __init__(self, sherd, scratch):
        self.sherd = sherd
        self.scratch = scratch

    def run(self, *words):
        done = subprocess.run(
            [str(word) for word in (self.sherd, *words)],
            capture_output=True, text=True, check=False, timeout=100,
        )  # fmt: skip
        return done.returncode, done.stdout + done.stderr

    def must(self, *words):
        status, output = self.run(*words)
        assert status == 0, (words, status, output)
        return output

    def must_fail(self, *words, says):
        status, output = self.run(*words)
        assert status != 0, (words, output)
        for text in says:
            assert text in output, (words, text, output)
        assert "terminate called" not in output, output

    def prepare(self, name, *flags, tokenizer="tokenizer", text=ROOT / "LICENSE"):
        out = self.scratch / name
        self.must("data", "prepare", "--tokenizer", self.scratch / tokenizer, "--out", out,
                  "--documents", "paragraph", *flags, text)  # fmt: skip
        return out

    def train(self, data, run, *flags, steps=2, ranks=2, sample=0):
        return ("run", "-n", ranks, "--", self.sherd, "train",
                "--data", data, "--run", self.scratch / run, "--layers", 1,
                "--steps", steps, "--width", 32, "--heads", 2, "--seq", 16, "--sample-tokens", sample, *flags)  # fmt: skip


def losses(run):
    lines = (run / "metrics.jsonl").read_text().splitlines()
    return [json.loads(line)["loss"] for line in lines]


def test_training_takes_prepared_data(job):
    data = job.prepare("data", "--validation", 0.2)
    job.must("data", "verify", data)
    shown = json.loads(job.must("data", "show", "--first", 1, data))
    assert shown["ids"][-1] == 258 and shown["text"].endswith("<end>"), shown
    job.must(*job.train(data, "run"))
    config = json.loads((job.scratch / "run" / "config.json").read_text())
    assert config["about"]["corpus_path"] == str(data)
    for name in ("tokenizer.json", "tokenizer_config.json"):
        assert (job.scratch / "run" / name).read_bytes() == (data / name).read_bytes()


def test_a_model_with_its_tokenizer_is_trained_on_and_evaluated(job):
    data, run, model = job.scratch / "data", job.scratch / "run", job.scratch / "model"
    job.must("checkpoint", "export", run, model)
    shown = job.must(*job.train(data, "on", "--init-from", model, steps=1, sample=8))
    on = job.scratch / "on"
    assert losses(on)[0] < losses(run)[0], (losses(on), losses(run))
    assert (on / "tokenizer.json").read_bytes() == (data / "tokenizer.json").read_bytes()
    # The sample is text, and begins with that of the data it is validated on.
    document = json.loads(job.must("data", "show", data / "validation.tokens"))["text"]
    sample = shown.split("follows the bar):\n")[1].replace("[rank 0] ", "")
    assert sample.startswith(document[:20]) and "|" in sample, (sample, document)
    text = ROOT / "LICENSE"
    job.must_fail(
        *job.train(text, "bytes", "--init-from", model),
        says=["expected tokens of", "model/tokenizer.json (digest", "found bytes"],
    )  # fmt: skip

    files = [data / "train.tokens", data / "validation.tokens"]
    scores = [
        json.loads(job.must("eval", "--from", run, "--json", "--data", *paths))
        for paths in ([files[0]], [files[1]], files)
    ]
    assert [score["path"] for score in scores[2]["files"]] == [str(path) for path in files]
    assert scores[2]["tokens"] == scores[0]["tokens"] + scores[1]["tokens"]
    mean = sum(score["loss"] * score["tokens"] for score in scores[:2]) / scores[2]["tokens"]
    assert abs(scores[2]["loss"] - mean) < 1e-9, (scores, mean)
    lines = job.must("eval", "--from", run, "--data", *files).splitlines()
    assert lines[0].startswith(f"{files[0]}: ") and lines[2].startswith("all: "), lines
    write_tokenizer(job.scratch / "third", merges=("a n",))
    other = job.prepare("other_data", tokenizer="third") / "train.tokens"
    job.must_fail(
        "eval", "--from", run, "--data", files[0], other,
        says=[f"{other}: expected tokens of {run}/tokenizer.json (digest", "another tokenizer (digest"],
    )  # fmt: skip


def test_an_imported_model_takes_data_of_its_tokenizer_only(job):
    data, run, imported = job.scratch / "data", job.scratch / "run", job.scratch / "imported"
    job.must("checkpoint", "export", run, job.scratch / "exported")
    job.must("checkpoint", "import", job.scratch / "exported", imported)
    goes_on = ("--config", imported / "config.json")
    job.must_fail(
        *job.train(ROOT / "LICENSE", "imported", *goes_on),
        says=["expected tokens of", "imported/tokenizer.json (digest", "found bytes"],
    )  # fmt: skip
    assert not (imported / "metrics.jsonl").exists()
    job.must(*job.train(data, "imported", *goes_on))


def test_a_blend_resumes_on_other_ranks_with_the_same_samples(job):
    job.prepare("one", "--validation", 0.2)
    job.prepare("two", text=ROOT / "STYLE.md")
    blend = job.scratch / "blend.json"
    blend.write_text(json.dumps({
        "sources": [{"path": "one", "weight": 0.7}, {"path": "two", "weight": 0.3}],
        "validation": "one/validation.tokens",
    }))
    job.must(*job.train(blend, "whole", steps=4, ranks=1))
    wanted = losses(job.scratch / "whole")
    for before, after in ((1, 3), (4, 2)):
        run = f"from_{before}_to_{after}"
        flags = ("--save-every", 2)
        job.must(*job.train(blend, run, *flags, "--stop-at", 2, steps=4, ranks=before))
        job.must(*job.train(blend, run, *flags, steps=4, ranks=after))
        found = losses(job.scratch / run)
        assert len(found) == 4, found
        assert all(abs(a - b) < 1e-3 for a, b in zip(found, wanted)), (found, wanted)


def test_data_that_is_not_what_it_seems(job):
    data = job.prepare("bad")
    for flag, number in (("--first", -1), ("--count", 0), ("--count", -3)):
        job.must_fail("data", "show", data, flag, number, says=["--count of 1 or more, found"])
    shown = job.must("data", "show", data, "--first", 1, "--count", 2**63 - 1)
    assert json.loads(shown.splitlines()[0])["document"] == 1, shown
    tokens = data / "train.tokens"
    whole = tokens.read_bytes()
    job.must_fail(*job.train(data, "v", "--vocab", 100), says=["at least 259", "found 100"])
    tokens.write_bytes(whole[:-8])
    job.must_fail(*job.train(data, "t"), says=[f"expected {len(whole)} bytes"])
    tokens.write_bytes(b"text" * 100)
    job.must_fail(*job.train(data, "m"), says=["starts with SHERDTOK"])
    tokens.write_bytes(b"")
    job.must_fail(*job.train(data, "e"), says=["at least 64 bytes, found 0"])
    changed = bytearray(whole)
    changed[70] ^= 1
    tokens.write_bytes(changed)
    job.must_fail("data", "verify", data, says=["expected the ids that were written"])
    tokens.write_bytes(whole)
    write_tokenizer(job.scratch / "other", merges=("a n",))
    shutil.copy(job.scratch / "other" / "tokenizer.json", data)
    job.must_fail(*job.train(data, "w"), says=["found another one"])
    job.must_fail("data", "show", data, says=["expected the tokenizer that made it"])
    job.must_fail(*job.train(job.scratch / "none", "n"), says=["none", "found nothing there"])


def main():
    scratch = pathlib.Path(sys.argv[2])
    shutil.rmtree(scratch, ignore_errors=True)
    scratch.mkdir(parents=True)
    write_tokenizer(scratch / "tokenizer")
    job = Job(sys.argv[1], scratch)
    tests = [test for name, test in globals().items() if name.startswith("test_")]
    for test in tests:
        test(job)
        print(f"passed: {test.__name__}")


if __name__ == "__main__":
    main()
