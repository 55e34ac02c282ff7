# SPDX-License-Identifier: Apache-2.0
"""accelerate's own FSDP example, of which three lines are changed, trains with sherd.

Usage: accelerate_example_test.py PACKAGE_FOLDER SHERD SCRATCH. The example is read
from SHERD_ACCELERATE_EXAMPLES, the folder examples of a checkout of accelerate;
without it the test is skipped. Its data sets, metric and model, which it would
fetch, are small ones that are made here.
"""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import clients

EXAMPLE = "by_feature/fsdp_with_peak_mem_tracking.py"
CHANGES = {
    # sherd's two lines.
    "from accelerate import Accelerator,":
        "from sherd.integrations.accelerate import shard\n"
        "from accelerate import Accelerator,",
    "        accelerator = Accelerator(fsdp_plugin=fsdp_plugin)":
        "        accelerator = shard(Accelerator(cpu=True))",
    # It counts the memory of accelerators, of which a CPU has none.
    "# For testing only\nif os.environ":
        "TorchTracemalloc.begin = TorchTracemalloc.end = TorchTracemalloc.peak = 0\n\n"
        "# For testing only\nif os.environ"}

DATASETS = '''
"""Sentences of two words, which are equal or not."""
WORDS = [f"w{number}" for number in range(8)]

class Splits(dict):
    def map(self, function, batched, remove_columns):
        def mapped(rows):
            columns = {key: [row[key] for row in rows] for key in rows[0]}
            more = function(columns)
            return [dict((key, row[key]) for key in row if key == "label")
                    | {key: more[key][place] for key in more}
                    for place, row in enumerate(rows)]
        return Splits({name: mapped(rows) for name, rows in self.items()})

    def rename_column(self, old, new):
        return Splits({name: [{new if key == old else key: value
                               for key, value in row.items()} for row in rows]
                       for name, rows in self.items()})

def load_dataset(*_):
    rows = [{"idx": 8 * a + b, "sentence1": WORDS[a], "sentence2": WORDS[b],
             "label": int(a == b)} for a in range(8) for b in range(8)]
    return Splits(train=rows, validation=rows[::2])
'''

EVALUATE = '''
class Accuracy:
    def __init__(self):
        self.right = self.all = 0

    def add_batch(self, predictions, references):
        self.right += (predictions == references).sum().item()
        self.all += len(references)

    def compute(self):
        result = {"accuracy": self.right / self.all, "f1": 0.0, "of": self.all}
        self.__init__()
        return result

def load(*_):
    return Accuracy()
'''


def make_model(folder):
    """A small BERT and a tokenizer of words."""
    import tokenizers
    import transformers
    words = ["[PAD]", "[UNK]"] + [f"w{number}" for number in range(8)]
    model = tokenizers.models.WordLevel(
        {word: place for place, word in enumerate(words)}, unk_token="[UNK]")
    tokenizer = tokenizers.Tokenizer(model)
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    transformers.PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, pad_token="[PAD]",
        unk_token="[UNK]").save_pretrained(folder)
    transformers.set_seed(0)
    transformers.BertForSequenceClassification(transformers.BertConfig(
        vocab_size=len(words), hidden_size=32, num_hidden_layers=2,
        num_attention_heads=2, intermediate_size=64,
        max_position_embeddings=16)).save_pretrained(folder)


def changed(example):
    for old, new in CHANGES.items():
        if example.count(old) != 1:
            sys.exit(f"expected {old!r} once in accelerate's {EXAMPLE}, found "
                     f"{example.count(old)} times")
        example = example.replace(old, new)
    return example


def check(scratch):
    """All weights were saved, and training changed them."""
    import torch
    from safetensors.torch import load_file
    before = load_file(scratch / "model" / "model.safetensors")
    after = load_file(scratch / "saved" / "epoch_2" / "model.safetensors")
    if set(before) != set(after):
        sys.exit(f"expected {sorted(before)}, found {sorted(after)}")
    same = [name for name in before if torch.equal(before[name], after[name])]
    if "classifier.weight" in same or len(same) > len(before) // 2:
        sys.exit(f"expected other values after training, found the same {same}")


def main():
    package, _, last = sys.argv[1:4]
    clients.need("transformers", "accelerate", "psutil")
    folder = os.environ.get("SHERD_ACCELERATE_EXAMPLES")
    if folder is None:
        print("skipped: SHERD_ACCELERATE_EXAMPLES does not name accelerate's examples")
        sys.exit(clients.EXIT_SKIPPED)
    scratch = Path(last)
    shutil.rmtree(scratch, ignore_errors=True)
    (scratch / "saved").mkdir(parents=True)
    (scratch / "datasets.py").write_text(DATASETS)
    (scratch / "evaluate.py").write_text(EVALUATE)
    (scratch / "example.py").write_text(changed((Path(folder) / EXAMPLE).read_text()))
    make_model(scratch / "model")
    path = os.pathsep.join([package, str(clients.FOLDER)])
    done = subprocess.run(
        [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2",
         scratch / "example.py", "--model_name_or_path", scratch / "model",
         "--output_dir", scratch / "saved", "--checkpointing_steps", "epoch"],
        check=False, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
        timeout=800, env=os.environ | {
            "PYTHONPATH": path, "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"})
    print(done.stdout)
    if done.returncode != 0 or "epoch 2: {'accuracy'" not in done.stdout:
        sys.exit(f"the example ended with {done.returncode}")
    check(scratch)


if __name__ == "__main__":
    main()
