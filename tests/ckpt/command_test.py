#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""`sherd checkpoint` as a user calls it, on a run of two ranks.

  command_test.py SHERD SCRATCH
"""

import json
import pathlib
import shutil
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent


class Command:
    def __init__(self, sherd, scratch):
        self.sherd = sherd
        self.run = scratch / "run"
        self.scratch = scratch

    def train(self):
        subprocess.run(
            [
                self.sherd, "run", "-n", "2", "--", self.sherd, "train", "--steps", "4",
                "--layers", "2", "--width", "32", "--heads", "2", "--seq", "16",
                "--data", ROOT / "LICENSE", "--sample-tokens", "0", "--save-every", "2",
                "--keep", "2", "--run", self.run,
            ],
            check=True,
            capture_output=True,
        )  # fmt: skip

    def step(self, number):
        return self.run / "checkpoints" / f"step-{number}"

    def shown(self, expected, *words):
        """stdout and stderr of a call that ends with this status."""
        done = subprocess.run(
            [str(word) for word in (self.sherd, "checkpoint", *words)],
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == expected, (words, done)
        assert "\r" not in done.stderr, "a bar where there is no terminal"
        return done.stdout + done.stderr


def compares(command):
    same = command.shown(0, "diff", command.step(2), command.step(2))
    assert " 0 changed, 0 on one side" in same, same
    text = command.shown(1, "diff", command.step(2), command.step(4))
    assert "value               data.step" in text, text
    assert "changed             model wte.weight  " in text, text
    assert " elements, by " in text, text
    # The newest of a run.
    found = json.loads(
        command.shown(1, "diff", command.step(2), command.run, "--json")
    )
    assert found["only_in_first"] == found["only_in_second"] == [], found
    names = {tensor["name"]: tensor for tensor in found["changed"]}
    assert names["wte.weight"]["shapes"] == [[256, 32], [256, 32]], names
    assert 0 < names["wte.weight"]["largest_difference"] < 0.1, names


def looks(command):
    text = command.shown(0, "inspect", command.run)
    assert "step-4: step 4, saved by 2 ranks" in text, text
    content = json.loads(command.shown(0, "inspect", "--json", command.step(2)))
    assert content["step"] == 2 and content["world_size"] == 2, content
    assert "complete" in command.shown(0, "verify", command.step(2))


def converts(command):
    files = json.loads(
        command.shown(
            0, "merge", "--torch", "--json", command.run, command.scratch / "torch"
        )
    )["files"]
    assert str(command.scratch / "torch" / "model.pt") in files, files
    assert pathlib.Path(files[0]).read_bytes()[:2] == b"PK", files
    refused = command.shown(1, "merge", command.run, command.scratch / "torch")
    assert "expected an empty folder" in refused, refused


def carries_the_tokenizer(command):
    companions = ("tokenizer.json", "special_tokens_map.json", "generation_config.json")
    for name in companions:
        (command.run / name).write_text('{"of": "' + name + '"}')
    exported = command.scratch / "exported"
    files = json.loads(command.shown(0, "export", "--json", command.run, exported))
    assert {pathlib.Path(file).name for file in files["files"]} == {
        "model.safetensors", "config.json", *companions,
    }, files  # fmt: skip
    imported = command.scratch / "imported"
    command.shown(0, "import", exported, imported)
    for run in (command.run, imported):
        config = (run / "config.json").read_bytes()
        refused = command.shown(1, "import", exported, run)
        assert f"{run}: expected a folder without a run" in refused, refused
        assert (run / "config.json").read_bytes() == config
    for name in companions:
        for folder in (exported, command.scratch / "imported"):
            assert name in (folder / name).read_text(), folder
        (command.run / name).unlink()


def refuses_weights_of_another_model(command):
    exported, to = command.scratch / "widened", command.scratch / "refused"
    command.shown(0, "export", command.run, exported)
    config = json.loads((exported / "config.json").read_text())
    for key, value, found in (
        ("n_positions", 7, "wpe.weight of shape [7, 32], as its config.json says, found [16"),
        ("n_layer", 3, "expected h.2."),
        ("n_layer", 1, ", too"),
    ):
        (exported / "config.json").write_text(json.dumps(config | {key: value}))
        refused = command.shown(1, "import", exported, to)
        assert f"{exported}: expected" in refused and found in refused, refused
        assert not list((to / "checkpoints").glob("step-*")), key


def refuses(command):
    assert "none: expected" in command.shown(2, "diff", command.run, command.scratch / "none")
    assert "see sherd checkpoint diff --help" in command.shown(2, "diff", command.run)
    assert "'bogus'" in command.shown(2, "bogus")
    misspelt = command.shown(2, "inspekt", command.run)
    assert "'inspekt' (did you mean inspect?)" in misspelt, misspelt
    missing = command.shown(1, "verify", command.scratch / "none")
    assert "none: expected a complete checkpoint" in missing, missing
    damaged = command.scratch / "damaged"
    shutil.copytree(command.step(4), damaged)
    file = damaged / "model-00001-000.safetensors"
    content = bytearray(file.read_bytes())
    content[-5] ^= 1
    file.write_bytes(content)
    for status, *words in ((1, "verify", damaged), (2, "diff", damaged, command.step(4))):
        text = command.shown(status, *words)
        assert "model-00001-000.safetensors: " in text and "is damaged" in text, text


def tries_again(command):
    """What failed leaves nothing that the next attempt refuses."""
    damaged, to = command.scratch / "torn", command.scratch / "to"
    shutil.copytree(command.step(4), damaged)
    file = damaged / "model-00001-000.safetensors"
    content = file.read_bytes()
    file.write_bytes(content[:-5] + bytes([content[-5] ^ 1]) + content[-4:])
    for convert in ("merge", "export"):
        assert "is damaged" in command.shown(1, convert, damaged, to)
        assert not list(to.iterdir()), convert
    # One of its companions cannot be copied.
    (command.run / "tokenizer_config.json").mkdir()
    assert "tokenizer_config.json" in command.shown(1, "export", command.run, to)
    assert not list(to.iterdir())
    (command.run / "tokenizer_config.json").rmdir()
    command.shown(0, "export", command.run, to)
    (command.scratch / "a b" / "checkpoints").mkdir(parents=True)
    (to / "tokenizer_config.json").mkdir()
    refused = command.shown(1, "import", to, command.scratch / "a b")
    assert "tokenizer_config.json" in refused, refused
    (to / "tokenizer_config.json").rmdir()
    printed = command.shown(0, "import", to, command.scratch / "a b")
    assert f"--config '{command.scratch}/a b/config.json' --data PATH" in printed


def main():
    if len(sys.argv) != 3:
        sys.exit(__doc__)
    scratch = pathlib.Path(sys.argv[2])
    shutil.rmtree(scratch, ignore_errors=True)
    scratch.mkdir(parents=True)
    command = Command(sys.argv[1], scratch)
    command.train()
    for show in (
        looks, compares, converts, carries_the_tokenizer,
        refuses_weights_of_another_model, refuses, tries_again
    ):  # fmt: skip
        show(command)


if __name__ == "__main__":
    main()
