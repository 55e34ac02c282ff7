# SPDX-License-Identifier: Apache-2.0
"""`sherd train` as a user calls it: what its tests share.

  NAME_test.py SHERD SCRATCH [NAME...]

SCRATCH is a folder that is replaced; NAMEs choose tests, as in unittest.
"""

import array
import json
import pathlib
import resource
import shutil
import signal
import struct
import subprocess
import sys
import unittest

TIMEOUT_S = 100
ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
SMALL = (
    "--layers", "1", "--width", "32", "--heads", "2", "--seq", "16",
    "--sample-tokens", "0",
)  # fmt: skip


def take_interrupts():
    """A shell's background job ignores SIGINT, one of nohup SIGHUP, and so would its children."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    signal.signal(signal.SIGHUP, signal.SIG_DFL)


def limits_files_to(size):
    """Unlike Python itself, its children are killed by the signal unless they ignore it."""
    return lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (size, size))


def change_tensor(file, name, value_at):
    """Element i of the fp32 tensor `name` of a safetensors file becomes value_at(i)."""
    content = bytearray(file.read_bytes())
    (header_bytes,) = struct.unpack_from("<Q", content)
    entry = json.loads(content[8 : 8 + header_bytes])[name]
    assert entry["dtype"] == "F32", entry
    begin, end = (8 + header_bytes + offset for offset in entry["data_offsets"])
    count = (end - begin) // 4
    struct.pack_into(f"<{count}f", content, begin, *(value_at(at) for at in range(count)))
    file.write_bytes(content)


class TrainTest(unittest.TestCase):
    sherd = ""
    scratch = pathlib.Path()

    def setUp(self):
        self.folder = self.scratch / self.id().rsplit(".", 1)[1]
        self.folder.mkdir(parents=True)
        (self.folder / "text").write_bytes((ROOT / "LICENSE").read_bytes())

    def shown(
        self, *words, command="train", expected=0, ranks=0, cwd=None, launcher=(), rank_1="",
        file_bytes_max=None
    ):
        """stdout and stderr of `sherd train WORDS`, which ends with `expected`.

        Rank 1 also has the words `rank_1`."""
        launcher = [self.sherd, "run", "-n", str(ranks), "--no-prefix", *launcher, "--"]
        if rank_1:
            # The launcher ends a rank with SIGTERM as soon as the other has failed.
            more = f'[ "$RANK" != 1 ] || set -- "$@" {rank_1}; trap "" TERM; exec "$@"'
            launcher += ["sh", "-c", more, "sh"]
        done = subprocess.run(
            [
                *(launcher if ranks else []), self.sherd, *command.split(),
                *(str(word) for word in words),
            ],
            cwd=cwd or self.folder,
            preexec_fn=limits_files_to(file_bytes_max) if file_bytes_max else None,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=TIMEOUT_S,
            check=False,
        )
        self.assertEqual(done.returncode, expected, done.stdout)
        return done.stdout

    def start(self, *words, launcher=()):
        if launcher:
            launcher = [self.sherd, "run", *launcher, "--"]
        process = subprocess.Popen(
            [*launcher, self.sherd, "train", *SMALL, *(str(word) for word in words)],
            cwd=self.folder,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            preexec_fn=take_interrupts,
            start_new_session=True,
        )
        self.addCleanup(process.stdout.close)
        self.addCleanup(process.wait)
        self.addCleanup(process.kill)
        return process

    def wait_for(self, process, *texts):
        """Reads until a line has one of them."""
        output = []
        for line in process.stdout:
            if any(text in line for text in texts):
                return
            output.append(line)
        self.fail(f"the output ended without {texts}:\n{''.join(output[-20:])}")

    def metrics(self, run, fields):
        """[values of these fields] of each step."""
        lines = (self.folder / run / "metrics.jsonl").read_text().splitlines()
        return [[json.loads(line)[field] for field in fields] for line in lines]

    def losses(self, run):
        return [loss for (loss,) in self.metrics(run, ["loss"])]

    def whole(self, checkpoint, section):
        """{name: numbers} of the weights of a section, which are fp32."""
        to = self.folder / "whole" / checkpoint.replace("/", "-")
        if not to.exists():
            subprocess.run(
                [self.sherd, "checkpoint", "merge", self.folder / checkpoint, to],
                check=True,
                capture_output=True,
            )
        content = (to / f"{section}.safetensors").read_bytes()
        end = 8 + int.from_bytes(content[:8], "little")
        header = json.loads(content[8:end])
        found = {}
        for name in header.keys() - {"__metadata__"}:
            begin, stop = header[name]["data_offsets"]
            found[name] = array.array("f", content[end + begin : end + stop])
        return found


def main():
    if len(sys.argv) < 3:
        sys.exit(__doc__)
    TrainTest.sherd = sys.argv[1]
    TrainTest.scratch = pathlib.Path(sys.argv[2]).resolve()
    shutil.rmtree(TrainTest.scratch, ignore_errors=True)
    unittest.main(argv=[sys.argv[0], *sys.argv[3:]], verbosity=2)
