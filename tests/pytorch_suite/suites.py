# SPDX-License-Identifier: Apache-2.0
"""Which of PyTorch's test files are run, over what, and what of them cannot be.

The lists beside this file hold a pattern of tests a line: FILE TEST REASON, with
FILE and TEST as in fnmatch, "#" for comments.
"""

import dataclasses
import fnmatch
import pathlib

HERE = pathlib.Path(__file__).resolve().parent
OVER_SHM = ("fork_ranks", "without_cuda", "gloo_is_shm")
OVER_REPLICATE = ("fork_ranks", "cpu_as_cuda", "ddp_is_sherd")
CPU = ("fork_ranks", "cpu_as_accelerator")
COMPOSABLE = "distributed/_composable/fsdp/test_fully_shard_"


@dataclasses.dataclass(frozen=True)
class File:
    """One test file: a path below PyTorch's test/, or a module that needs none."""

    name: str
    part: str
    adapters: tuple
    module: str = ""
    # Set for its process, as PyTorch's test/run_test.py does.
    environment: dict = dataclasses.field(default_factory=dict)
    tests: tuple = ("*",)
    without: tuple = ()

    def path(self, tests):
        return pathlib.Path(tests) / self.name

    @property
    def title(self):
        ranks = self.environment.get("WORLD_SIZE")
        return f"{self.name}, {ranks} ranks" if ranks else self.name

    def without_sherd(self):
        """The adapters with which PyTorch's own implementation is tested."""
        return [name for name in self.adapters if "_is_sh" not in name]

    def at_hand(self, tests):
        return bool(self.module) or (tests and self.path(tests).is_file())


def composable(*subjects):
    over = (*CPU, "ddp_without_devices", "fully_shard_is_sherd")
    return [File(f"{COMPOSABLE}{name}.py", "FSDP2", over) for name in subjects]


def spawned(part, adapters, ranks, **which):
    """The tests that are installed with PyTorch."""
    return File(
        "torch/testing/_internal/distributed/distributed_test.py",
        part,
        adapters,
        module="spawned_collectives",
        environment={"BACKEND": "gloo", "WORLD_SIZE": str(ranks), "TEMP_DIR": "/tmp"},
        **which,
    )


# Of groups that are a part of all ranks: PyTorch has them skip below eight ranks.
OF_EIGHT = ("*[!l]_group", "*[!l]_group_[psm]*", "*_all_group")
OF_DDP = ("*ddp*", "*DDP*", "*DistributedDataParallel*", "*static_graph*", "*unused*")

FILES = [
    spawned("collectives", OVER_SHM, 4, without=OF_EIGHT + OF_DDP),
    spawned("collectives", OVER_SHM, 8, tests=OF_EIGHT),
    spawned("DDP", OVER_REPLICATE, 2, tests=OF_DDP),
    File("distributed/test_c10d_common.py", "collectives", OVER_SHM),
    File("distributed/test_c10d_gloo.py", "collectives", OVER_SHM),
    *composable("training", "state", "init", "frozen", "autograd"),
    *composable("mixed_precision", "clip_grad_norm_", "comm", "overlap"),
    *composable("state_dict", "grad_scaler", "ignore_params"),
]


class Reasons:
    """The lines of one list."""

    def __init__(self, path):
        self.lines = []
        for line in path.read_text().splitlines():
            if line.strip() and not line.startswith("#"):
                self.lines.append(line.split(maxsplit=2))

    def of_file(self, file):
        """Pairs of a pattern of tests and why."""
        stem = pathlib.Path(file.name).stem
        return [
            (tests, why)
            for files, tests, why in self.lines
            if fnmatch.fnmatchcase(stem, files)
        ]

    def of(self, file, test):
        """Why `test` is in the list, or None."""
        for tests, why in self.of_file(file):
            if fnmatch.fnmatchcase(test, tests):
                return why
        return None


def not_applicable():
    return Reasons(HERE / "not_applicable.txt")


def known_failures():
    return Reasons(HERE / "known_failures.txt")
