#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""A Parquet file becomes the tokens that the same text in JSON lines becomes.

  parquet_test.py SHERD SCRATCH

Exit status 77, a counted skip, without pyarrow (scripts/setup puts it into
build/clients, where it can).
"""

import json
import os
import pathlib
import shutil
import subprocess
import sys

EXIT_SKIPPED = 77
ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
CLIENTS = ROOT / "build" / "clients"
sys.path.insert(0, str(CLIENTS))
TEXTS = [f"document {i} \u00e7a \u732b \U0001f469 \"quoted\"\n\tend\0" * (i % 7) for i in range(1000)]


class Job:
    def __init__(self, sherd, scratch):
        self.sherd = sherd
        self.scratch = scratch

    def prepare(self, out, *words):
        done = subprocess.run(
            [self.sherd, "data", "prepare", "--tokenizer", "bytes", "--out", self.scratch / out,
             "--python", sys.executable, *words],
            capture_output=True, text=True, check=False, timeout=100,
            env={**os.environ, "PYTHONPATH": str(CLIENTS)})  # fmt: skip
        return done.returncode, done.stdout + done.stderr

    def tokens(self, out, *words):
        status, output = self.prepare(out, *words)
        assert status == 0, (words, output)
        return (self.scratch / out / "train.tokens").read_bytes()

    def must_refuse(self, path, *says, flags=()):
        status, output = self.prepare("refused", *flags, path)
        assert status != 0, (path, output)
        for text in (str(path), *says):
            assert text in output, (text, output)
        assert "Traceback" not in output, output
        assert not (self.scratch / "refused" / "train.tokens").exists()


def write(path, **columns):
    import pyarrow
    import pyarrow.parquet

    pyarrow.parquet.write_table(pyarrow.table(columns), path, row_group_size=64)
    return path


def test_rows_are_the_documents_of_json_lines(job):
    import pyarrow

    lines = job.scratch / "in.jsonl"
    lines.write_text("".join(json.dumps({"text": text}) + "\n" for text in TEXTS))
    wanted = job.tokens("lines", lines)
    texts = [text or None for text in TEXTS]  # Rows without a text are left out like empty ones.
    # A column whose name begins with that of the other must not be taken for it.
    path = write(job.scratch / "in.parquet", **{"text.id": range(1000), "text": texts})
    assert job.tokens("rows", path) == wanted
    # Another kind of text under another name, whatever --documents says.
    texts = pyarrow.array(TEXTS).cast(pyarrow.dictionary(pyarrow.int32(), pyarrow.large_string()))
    path = write(job.scratch / "it's.parquet", body=texts)
    assert job.tokens("other", "--column", "body", "--documents", "line", path) == wanted


def test_a_folder_lists_parquet_files_like_others(job):
    import pyarrow

    folder = job.scratch / "folder"
    folder.mkdir()
    write(folder / "b.parquet", text=["b", "bb"])
    write(folder / "d.parquet", text=pyarrow.array([], pyarrow.string()))
    (folder / "a.txt").write_text("a")
    (folder / "c.jsonl").write_text('{"text": "c"}\n')
    job.tokens("listed", folder)
    taken = json.loads((job.scratch / "listed" / "prepared.json").read_text())["taken"]
    assert [(pathlib.Path(each["path"]).name, each["documents"]) for each in taken] == [
        ("a.txt", 1), ("b.parquet", 2), ("c.jsonl", 1), ("d.parquet", 0)]  # fmt: skip
    assert taken[1]["bytes"] == (folder / "b.parquet").stat().st_size


def test_other_columns_are_refused_with_those_found(job):
    path = write(job.scratch / "columns.parquet", id=[1], tags=[["x"]], raw=[b"x"], body=["x"],
                 meta=[{"text": "x"}])  # fmt: skip
    found = "found the columns id (int64), tags (list<element: string>), raw (binary), body (string)"
    job.must_refuse(path, 'expected one column "text" of text', found)
    for column in ("tags", "raw", "meta.text"):
        job.must_refuse(path, f'expected one column "{column}"', found, flags=("--column", column))


def test_files_that_are_no_whole_parquet_are_refused_by_name(job):
    whole = write(job.scratch / "whole.parquet", text=TEXTS).read_bytes()
    path = job.scratch / "damaged.parquet"
    middle = len(whole) // 2
    for content in (b"text", whole[:-20], whole[:middle] + bytes(4096) + whole[middle + 4096:]):
        path.write_bytes(content)
        job.must_refuse(path, "expected a whole Parquet file, found: ")


def main():
    scratch = pathlib.Path(sys.argv[2])
    try:
        import pyarrow
    except ImportError as error:
        print(f"skipped: {error}")
        sys.exit(EXIT_SKIPPED)
    print(f"pyarrow {pyarrow.__version__}")
    shutil.rmtree(scratch, ignore_errors=True)
    scratch.mkdir(parents=True)
    job = Job(sys.argv[1], scratch)
    for name, test in list(globals().items()):
        if name.startswith("test_"):
            test(job)
            print(f"passed: {name}")


if __name__ == "__main__":
    main()
