# SPDX-License-Identifier: Apache-2.0
"""A Trainer that sherd shards trains, saves and resumes as a plain one does.

Usage: trainer_test.py PACKAGE_FOLDER SHERD SCRATCH. Starts itself on two ranks, as
trainer_test.py --sharded PACKAGE_FOLDER SCRATCH, and on one: --plain.
"""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import clients

STEPS = 6
SAVED = 3
TOLERANCE = 2e-5


def trainer_of(folder, ranks, model=None, **more):
    """Of eight examples a step in two micro-batches, whatever the number of ranks."""
    import torch
    import transformers
    generator = torch.Generator().manual_seed(7)
    tokens = torch.randint(1, clients.VOCABULARY, (32, 16), generator=generator)
    dataset = [{"input_ids": row, "labels": row} for row in tokens]
    arguments = transformers.TrainingArguments(
        str(folder), use_cpu=True, max_steps=STEPS, logging_steps=1, seed=3,
        per_device_train_batch_size=4 // ranks, gradient_accumulation_steps=2,
        learning_rate=1e-2, weight_decay=0.1, adam_epsilon=1e-4, max_grad_norm=0.5,
        save_steps=SAVED, disable_tqdm=True, report_to="none", **more)
    return transformers.Trainer(
        model or clients.gpt2(), arguments, train_dataset=dataset, eval_dataset=dataset[:8])


def logged(trainer, key):
    return [entry[key] for entry in trainer.state.log_history if key in entry]


def near(ours, theirs, what):
    if len(ours) != len(theirs) or not ours:
        sys.exit(f"{what}: expected {len(theirs)} values, found {len(ours)}")
    for a, b in zip(ours, theirs):
        if abs(a - b) > TOLERANCE * max(1.0, abs(b)):
            sys.exit(f"{what}: expected {theirs}, found {ours}")


def same_values(ours, theirs, what, file="model.safetensors"):
    import torch
    from safetensors.torch import load_file
    ours, theirs = load_file(Path(ours) / file), load_file(Path(theirs) / file)
    if set(ours) != set(theirs):
        sys.exit(f"{what}: expected {sorted(theirs)}, found {sorted(ours)}")
    for name, value in theirs.items():
        if not torch.allclose(ours[name], value, atol=TOLERANCE):
            sys.exit(f"{what}: {name} is off by {(ours[name] - value).abs().max()}")


def sharded(scratch):
    """On each of two ranks."""
    from sherd.integrations.transformers import shard
    import sherd
    trainer = shard(trainer_of(scratch / "sharded", 2, gradient_checkpointing=True))
    trainer.train()
    if trainer.is_world_process_zero():
        handle = sherd.handle_of(trainer.model)
        assert handle.report().backwards > 0
        decays = {group["weight_decay"]: len(group["params"])
                  for group in trainer.optimizer.param_groups}
        assert set(decays) == {0.0, 0.1}, decays
    whole_run = logged(trainer, "loss")
    evaluated = trainer.evaluate()["eval_loss"]
    resumed = shard(trainer_of(
        scratch / "resumed", 2, load_best_model_at_end=True, eval_strategy="steps",
        eval_steps=SAVED))
    resumed.train(resume_from_checkpoint=str(scratch / "sharded" / f"checkpoint-{SAVED}"))
    near(logged(resumed, "loss"), whole_run, "losses of a resumed run")
    near([resumed.evaluate()["eval_loss"]], [evaluated], "evaluation of a resumed run")
    if trainer.is_world_process_zero():
        import torch
        torch.save({"loss": whole_run, "grad_norm": logged(trainer, "grad_norm"),
                    "eval_loss": [evaluated]}, scratch / "found.pt")


def adapters_of(scratch):
    """Adapters and a trained layer by peft on two ranks, saved, resumed and read by peft."""
    import peft
    from sherd.integrations.transformers import shard
    def adapted():
        return peft.get_peft_model(clients.llama(), peft.LoraConfig(
            r=4, target_modules=["q_proj", "v_proj"], modules_to_save=["lm_head"]))
    whole_run = shard(trainer_of(scratch / "lora", 2, adapted()))
    whole_run.train()
    resumed = shard(trainer_of(
        scratch / "lora_resumed", 2, adapted(), load_best_model_at_end=True,
        eval_strategy="steps", eval_steps=SAVED))
    resumed.train(resume_from_checkpoint=str(scratch / "lora" / f"checkpoint-{SAVED}"))
    near(logged(resumed, "loss"), logged(whole_run, "loss"), "losses of adapters")
    if resumed.is_world_process_zero():
        last = scratch / "lora" / f"checkpoint-{STEPS}"
        same_values(scratch / "lora_resumed" / last.name, last, "adapters",
                    "adapter_model.safetensors")
        saved = peft.PeftModel.from_pretrained(clients.llama(), last)
        head = saved.base_model.model.lm_head.modules_to_save["default"].weight
        assert not head.equal(clients.llama().lm_head.weight), "expected a trained head"


def plain(scratch):
    """On one rank, after sharded()."""
    import torch
    found = torch.load(scratch / "found.pt", weights_only=True)
    trainer = trainer_of(scratch / "plain", 1)
    trainer.train()
    for key in ("loss", "grad_norm"):
        near(found[key], logged(trainer, key), key)
    if found["loss"][-1] >= found["loss"][0]:
        sys.exit(f"expected losses that fall, found {found['loss']}")
    near(found["eval_loss"], [trainer.evaluate()["eval_loss"]], "evaluation")
    last, saved = f"checkpoint-{STEPS}", f"checkpoint-{SAVED}"
    same_values(scratch / "sharded" / last, scratch / "plain" / last, "the end")
    same_values(scratch / "resumed" / last, scratch / "plain" / last, "resumed")
    # A plain Trainer goes on from what the sharded one has saved.
    trainer = trainer_of(scratch / "from_sharded", 1)
    trainer.train(resume_from_checkpoint=str(scratch / "sharded" / saved))
    same_values(scratch / "from_sharded" / last, scratch / "plain" / last, "plain again")


def started(role, launcher, package, scratch):
    subprocess.run(
        [*launcher, sys.executable, __file__, role, package, str(scratch)], check=True,
        timeout=800, env=os.environ | {"OMP_NUM_THREADS": "1"})


def main():
    role, package, last = sys.argv[1:4]
    clients.need("transformers", "accelerate", "peft")
    if role in ("--sharded", "--plain"):
        sys.path.insert(0, package)
        scratch = Path(last)
        if role == "--plain":
            plain(scratch)
        else:
            sharded(scratch)
            adapters_of(scratch)
        return
    package, sherd, scratch = role, package, Path(last)
    shutil.rmtree(scratch, ignore_errors=True)
    scratch.mkdir(parents=True)
    started("--sharded", [sherd, "run", "-n", "2", "--"], package, scratch)
    started("--plain", [], package, scratch)


if __name__ == "__main__":
    main()
