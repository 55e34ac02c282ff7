#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""`sherd generate` and `sherd eval` against transformers, and with bad input.

  generate_test.py CASE SHERD SCRATCH

CASE is a function below. Exit status 77, a counted skip, where transformers is
not installed (scripts/setup puts it into build/clients, where it can).
"""

import json
import os
import pathlib
import shutil
import subprocess
import sys

EXIT_SKIPPED = 77
TOKENS = 64
VOCABULARY = 256
POSITIONS = 96
ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
sys.path.insert(0, str(ROOT / "build" / "clients"))
PROMPT = "The License is"
TEXT = (ROOT / "LICENSE").read_text()[:1000]


def outcome(*words):
    done = subprocess.run(
        [str(word) for word in words],
        capture_output=True, check=False, timeout=100,
        env=os.environ | {"OMP_NUM_THREADS": "1"},
    )  # fmt: skip
    # Decoded here, since a file in text mode would read "\r" as "\n".
    out, err = (text.decode(errors="replace") for text in (done.stdout, done.stderr))
    return done.returncode, out, err


def run(*words):
    status, out, err = outcome(*words)
    if status != 0:
        sys.exit(f"{words} ended with {status}:\n{out}{err}")
    return out


def on_ranks(sherd, count):
    return [sherd, "run", "-n", count, "--no-prefix", "--"] if count > 1 else []


def generated(sherd, source, *more, ranks=1, prompt=PROMPT):
    """What --json prints, on one rank or several."""
    printed = run(
        *on_ranks(sherd, ranks), sherd, "generate", "--from", source,
        "--prompt", prompt, "--tokens", TOKENS, "--json", *more,
    )  # fmt: skip
    return json.loads(printed)


def evaluated(sherd, source, *more, ranks=1):
    return json.loads(
        run(
            *on_ranks(sherd, ranks), sherd, "eval", "--from", source, "--json",
            *more,
        )
    )  # fmt: skip


# ---- models of transformers


def small_models():
    """Configurations of random weights, large enough for varied texts."""
    import transformers as tf

    common = {
        "vocab_size": VOCABULARY, "bos_token_id": None, "eos_token_id": None,
        "initializer_range": 0.4,
    }  # fmt: skip
    llama = common | {
        "hidden_size": 48, "intermediate_size": 80, "num_hidden_layers": 3,
        "num_attention_heads": 4, "num_key_value_heads": 2,
        "max_position_embeddings": POSITIONS,
    }  # fmt: skip
    llama3 = {
        "rope_type": "llama3", "rope_theta": 500.0, "factor": 4.0,
        "low_freq_factor": 1.0, "high_freq_factor": 4.0,
        "original_max_position_embeddings": 48,
    }  # fmt: skip
    yarn = {
        "rope_type": "yarn", "rope_theta": 500.0, "factor": 2.0,
        "original_max_position_embeddings": 48,
    }  # fmt: skip
    return {
        "gpt2": tf.GPT2Config(
            n_layer=3, n_embd=48, n_head=4, n_positions=POSITIONS, **common
        ),
        "llama": tf.LlamaConfig(
            tie_word_embeddings=True, rope_parameters=llama3, **llama
        ),
        "mistral": tf.MistralConfig(sliding_window=20, **llama),
        "qwen2": tf.Qwen2Config(tie_word_embeddings=True, **llama),
        "sliding": tf.Qwen2Config(
            use_sliding_window=True, sliding_window=20, max_window_layers=0,
            **llama,
        ),
        "qwen3": tf.Qwen3Config(head_dim=16, **llama),
        "yarn": tf.Qwen2Config(rope_parameters=yarn, **llama),
    }


def saved_model(config, folder, **options):
    """One of random weights, biases and norms among them, in that folder."""
    import torch
    import transformers

    torch.manual_seed(5)
    model = transformers.AutoModelForCausalLM.from_config(config).eval()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if parameter.dim() == 1:
                parameter.add_(torch.randn_like(parameter) * 0.1)
    shutil.rmtree(folder, ignore_errors=True)
    model.save_pretrained(folder, **options)
    return model


def greedy(model, prompt):
    import torch

    with torch.no_grad():
        made = model.generate(
            torch.tensor([prompt]), max_new_tokens=TOKENS, do_sample=False,
            pad_token_id=0,
        )  # fmt: skip
    return made[0, len(prompt) :].tolist()


def families(sherd, scratch):
    """Greedy tokens and losses are those of transformers, sharded or not."""
    import torch

    for name, config in small_models().items():
        folder = scratch / name
        model = saved_model(config, folder, max_shard_size="60KB")
        found = generated(sherd, folder, "--temperature", 0)
        assert found["prompt_ids"] == list(PROMPT.encode()), found
        expected = greedy(model, found["prompt_ids"])
        assert len(set(expected)) > 8, (name, expected)
        assert found["ids"] == expected, (name, found["ids"], expected)
        ids = torch.tensor([list(TEXT.encode()[:POSITIONS])])
        with torch.no_grad():
            loss = model(input_ids=ids, labels=ids).loss.item()
        text = scratch / "text"
        text.write_text(TEXT[:POSITIONS])
        score = evaluated(sherd, folder, "--data", text)
        assert score["tokens"] == POSITIONS - 1, score
        assert abs(score["loss"] - loss) < 1e-4, (name, score, loss)
        if name in ("gpt2", "llama"):
            sharded = generated(sherd, folder, "--temperature", 0, ranks=2)
            assert sharded["ids"] == expected, (name, sharded["ids"], expected)
        print(f"{name}: {len(expected)} tokens, loss {loss:.4f}")


def imported(sherd, scratch):
    """What transformers saved is the same model as a run, and comes back."""
    from safetensors.torch import load_file

    for name in ("llama", "qwen2", "sliding", "qwen3", "mistral", "yarn"):
        folder, run_folder = scratch / name, scratch / f"{name}-run"
        saved_model(small_models()[name], folder)
        shutil.rmtree(run_folder, ignore_errors=True)
        run(sherd, "checkpoint", "import", folder, run_folder)
        again = run_folder / "exported"
        run(sherd, "checkpoint", "export", run_folder, again)
        before = load_file(folder / "model.safetensors")
        after = load_file(again / "model.safetensors")
        assert before.keys() == after.keys(), before.keys() ^ after.keys()
        assert all((before[key] == after[key]).all() for key in before), name
        expected = generated(sherd, folder, "--temperature", 0)["ids"]
        for source in (run_folder, again):
            found = generated(sherd, source, "--temperature", 0)["ids"]
            assert found == expected, (name, source, found, expected)
    # A run that begins with them has them, too: its step changes nothing.
    begun = scratch / "begun"
    shutil.rmtree(begun, ignore_errors=True)
    run(
        *on_ranks(sherd, 2), sherd, "train", "--init-from", folder, "--run", begun,
        "--data", ROOT / "LICENSE", "--steps", 1, "--lr", 0, "--sample-tokens", 0,
        "--quiet",
    )  # fmt: skip
    assert generated(sherd, begun, "--temperature", 0)["ids"] == expected


def tokenizers(sherd, scratch):
    """A model's own tokenizer is used, travels with it, and must fit."""
    import transformers
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

    inner = Tokenizer(models.BPE())
    inner.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    inner.decoder = decoders.ByteLevel()
    inner.train_from_iterator(
        [TEXT],
        trainers.BpeTrainer(
            vocab_size=320, special_tokens=["<end>"],
            initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        ),
    )  # fmt: skip
    tokenizer = transformers.PreTrainedTokenizerFast(
        tokenizer_object=inner, eos_token="<end>"
    )
    config = small_models()["qwen2"]
    config.vocab_size = 328
    folder = scratch / "model"
    model = saved_model(config, folder)
    tokenizer.save_pretrained(folder)
    prompt = tokenizer(PROMPT)["input_ids"]
    assert len(prompt) < len(PROMPT)
    found = generated(sherd, folder, "--temperature", 0)
    assert found["prompt_ids"] == prompt, (found, prompt)
    # Without eos, since the model is told of none; ids without a text are none.
    expected = greedy(model, prompt)
    assert found["ids"] == expected[: len(found["ids"])], (found, expected)
    ends = found["ids"][-1] == tokenizer.eos_token_id
    assert ends or len(found["ids"]) == TOKENS, found
    assert found["text"] == tokenizer.decode(found["ids"]), found
    run_folder = scratch / "run"
    shutil.rmtree(run_folder, ignore_errors=True)
    run(sherd, "checkpoint", "import", folder, run_folder)
    assert generated(sherd, run_folder, "--temperature", 0)["ids"] == found["ids"]
    run(sherd, "checkpoint", "export", run_folder, scratch / "run" / "exported")
    again = transformers.AutoTokenizer.from_pretrained(run_folder / "exported")
    assert again(PROMPT)["input_ids"] == prompt

    small = scratch / "small"
    config.vocab_size = 300
    saved_model(config, small)
    tokenizer.save_pretrained(small)
    refused(
        sherd, "generate", "--from", small, "--prompt", "a",
        expected="tokenizer.json: expected a tokenizer of at most 300 ids, the "
        "vocabulary of the model, found 320",
    )  # fmt: skip
    (small / "tokenizer.json").unlink()
    refused(
        sherd, "generate", "--from", small, "--prompt", "a",
        expected="expected the tokenizer of a model with a vocabulary of 300, "
        "found no such file",
    )  # fmt: skip


# ---- models of sherd train


def trained(sherd, folder, *more):
    shutil.rmtree(folder, ignore_errors=True)
    run(
        sherd, "train", "--steps", 30, "--layers", 2, "--width", 64, "--heads", 4,
        "--seq", POSITIONS, "--batch", 4, "--save-every", 30, "--quiet",
        "--sample-tokens", 0, "--run", folder,
        *(() if "--data" in more else ("--data", ROOT / "LICENSE")), *more,
    )  # fmt: skip


def runs(sherd, scratch):
    """A run, its checkpoint and what it exports say the same on any ranks."""
    folder = scratch / "run"
    # A vocabulary of bytes, padded.
    trained(
        sherd, folder, "--model", "llama", "--kv-heads", 2, "--tied-head",
        "--vocab", 264,
    )  # fmt: skip
    found = generated(sherd, folder, "--seed", 3)
    assert len(found["ids"]) == TOKENS and found["text"], found
    checkpoint = folder / "checkpoints" / "step-30"
    assert generated(sherd, checkpoint, "--seed", 3)["ids"] == found["ids"]
    sharded = generated(sherd, folder, "--seed", 3, ranks=2)
    assert sharded["ids"] == found["ids"], (sharded, found)
    assert generated(sherd, folder, "--seed", 4)["ids"] != found["ids"]
    one = generated(sherd, folder, "--seed", 4, "--top-k", 1)["ids"]
    greedy_ids = generated(sherd, folder, "--temperature", 0)["ids"]
    assert one == greedy_ids, (one, greedy_ids)
    rounded = ("--temperature", 0, "--dtype", "bf16")
    alone = generated(sherd, folder, *rounded)["ids"]
    assert alone == generated(sherd, folder, *rounded, ranks=2)["ids"], alone
    # Beyond its positions a model sees the last ones.
    long = generated(sherd, folder, "--temperature", 0, prompt="a" * POSITIONS)
    assert len(long["ids"]) == TOKENS
    # As text: the prompt, what follows it, and a line's end.
    text = run(
        sherd, "generate", "--from", folder, "--prompt", PROMPT,
        "--tokens", TOKENS, "--seed", 3,
    )  # fmt: skip
    assert text == PROMPT + found["text"] + "\n", (text, found["text"])

    text_file = scratch / "text"
    text_file.write_text(TEXT)
    score = evaluated(sherd, folder, "--data", text_file)
    assert score["tokens"] == len(TEXT) - 1, score
    assert score["loss"] < 4.0, score  # Untrained: 5.5.
    for ranks in (2, 3):
        other = evaluated(sherd, folder, "--data", text_file, ranks=ranks)
        assert other["tokens"] == score["tokens"], other
        assert abs(other["loss"] - score["loss"]) < 1e-5, (ranks, other, score)
    assert "perplexity" in run(
        sherd, "eval", "--from", folder, "--data", text_file, "--seq", 10
    )
    tasks = scratch / "tasks.jsonl"
    tasks.write_text(
        json.dumps({"prompt": "the Licen", "choices": ["se", "\x01\x02"], "answer": 0})
        + "\n"
        + json.dumps({"prompt": "of th", "choices": ["QZ", "e ", "#9"], "answer": 1})
        + "\n"
    )
    for ranks in (1, 2):
        found = evaluated(sherd, folder, "--choices", tasks, ranks=ranks)
        assert found["chosen"] == [0, 1] and found["accuracy"] == 1.0, found
    ids_without_a_tokenizer(sherd, scratch)


def ids_without_a_tokenizer(sherd, scratch):
    """A model that was trained on ids is evaluated on ids."""
    folder, ids = scratch / "of-ids", scratch / "ids.bin"
    ids.write_bytes(b"".join(i.to_bytes(2, "little") for i in range(500)) * 4)
    trained(sherd, folder, "--data", ids, "--vocab", 512)
    assert evaluated(sherd, folder, "--data", ids)["tokens"] == 1999
    text = scratch / "text"
    text.write_text("a text")
    for words in (("--data", text), ("--data", ids, text)):
        status, _, err = outcome(sherd, "eval", "--from", folder, *words)
        assert status == 2 and "expected the tokenizer of a model" in err, err


def refused(sherd, *words, expected, ranks=(1, 2)):
    """Every rank says what was expected and found, and the job ends."""
    for count in ranks:
        status, out, err = outcome(*on_ranks(sherd, count), sherd, *words)
        assert status not in (0, -6, -11, 134, 139), (words, status, err)
        assert expected in err, (words, count, expected, out, err)
        assert not out, out


def bad_input(sherd, scratch):
    folder = scratch / "run"
    trained(sherd, folder)
    exported = scratch / "exported"
    shutil.rmtree(exported, ignore_errors=True)
    run(sherd, "checkpoint", "export", folder, exported)

    def generate(source, expected, *more, prompt="a", ranks=(1,)):
        refused(
            sherd, "generate", "--from", source, "--prompt", prompt, *more,
            expected=expected, ranks=ranks,
        )  # fmt: skip

    generate(
        folder,
        f"--prompt: expected at most {POSITIONS} tokens, the positions of the "
        f"model, found {POSITIONS + 1}",
        prompt="a" * (POSITIONS + 1),
        ranks=(1, 2),
    )
    generate(folder, "--prompt: expected a text of at least 1 token", prompt="")
    generate(scratch / "none", "found no such folder", ranks=(1, 2))
    generate(ROOT / "LICENSE", "found a file")
    generate(folder, "--dtype: expected fp32 or bf16, found 'int8'", "--dtype", "int8")
    generate(folder, "top_p in (0, 1], found top_p 2", "--top-p", 2)
    generate(folder, "a temperature of at least 0", "--temperature=-1")
    generate(folder, "at least 0 tokens, found tokens -1", "--tokens=-1")

    weights = exported / "model.safetensors"
    whole = weights.read_bytes()
    for content, expected in (
        (whole[: len(whole) // 2], "model.safetensors"),
        (b"", "model.safetensors"),
        (b"\x7fELF" + whole, "model.safetensors"),
    ):
        weights.write_bytes(content)
        generate(exported, expected, ranks=(1, 2))
    weights.unlink()
    generate(exported, "expected model.safetensors, found none")
    # Another model's weights.
    weights.write_bytes(whole)
    config = json.loads((exported / "config.json").read_text())
    for key, value, expected in (
        ("n_layer", 3, "expected all tensors that the model has, found no h.2."),
        ("n_layer", 1, "expected no tensor that the model lacks, found h.1."),
        ("vocab_size", 200, "expected shape [200, 64], found [256, 64]"),
        ("model_type", "gpt_oss", "found gpt_oss"),
    ):
        changed = json.dumps(config | {key: value})
        (exported / "config.json").write_text(changed)
        generate(exported, expected, ranks=(1, 2) if key == "vocab_size" else (1,))

    def evaluate(expected, *more, ranks=(1,)):
        refused(
            sherd, "eval", "--from", folder, *more, expected=expected, ranks=ranks
        )

    text, tasks = scratch / "text", scratch / "tasks.jsonl"
    text.write_text("a")
    tasks.write_text('{"prompt": "a", "choices": ["b"], "answer": 0}\n')
    evaluate("expected --data or --choices, found neither")
    evaluate("found both", "--data", text, "--choices", tasks)
    evaluate("expected at least 2 tokens, found 1", "--data", text, ranks=(1, 2))
    evaluate("expected a file that can be read", "--data", scratch / "none")
    evaluate("found a folder; name a file in it", "--data", scratch)
    evaluate("tasks.jsonl:1: expected", "--choices", tasks)
    tasks.write_text(json.dumps({"prompt": "a" * 90, "choices": ["b" * 9, ""], "answer": 0}))
    evaluate(f"at most {POSITIONS} with the prompt, found 9 and 99", "--choices", tasks)
    evaluate("--seq: expected none with --choices", "--choices", tasks, "--seq", 4)
    evaluate(f"--seq: expected 0 to {POSITIONS}", "--data", text, "--seq", 1000)
    # The newest checkpoint lost bytes.
    part = next((folder / "checkpoints" / "step-30").glob("model*.safetensors"))
    part.write_bytes(part.read_bytes()[:-200])
    generate(folder, part.name, ranks=(1, 2))


def clients(sherd, scratch):
    """Against transformers, in one process: to import it takes longer than any of them."""
    for each in (families, imported, tokenizers):
        folder = scratch / each.__name__
        folder.mkdir(exist_ok=True)
        each(sherd, folder)


CASES = {each.__name__: each for each in (clients, runs, bad_input)}


def main():
    if len(sys.argv) != 4 or sys.argv[1] not in CASES:
        sys.exit(__doc__)
    if sys.argv[1] == "clients":
        try:
            import transformers  # noqa: F401
        except ImportError as missing:
            print(f"skipped: {missing}")
            sys.exit(EXIT_SKIPPED)
    scratch = pathlib.Path(sys.argv[3])
    scratch.mkdir(parents=True, exist_ok=True)
    CASES[sys.argv[1]](sys.argv[2], scratch)


if __name__ == "__main__":
    main()
