#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Tokenizers give the ids that Hugging Face's `tokenizers` gives.

  tokenizers_test.py SHERD SCRATCH [SEED]

Trains small tokenizers of each kind on text that lies on this machine, and
compares ids and decoded text on 10,000 lines of it, on sentences of many
scripts, on every character, on random characters and on random bytes, which
differ in each run without SEED. `sherd
data prepare` encodes; the token file is read here by its documented format.
Exit status 77, a counted skip, without `tokenizers` (scripts/setup puts it into
build/clients, where it can).
"""

import base64
import json
import pathlib
import random
import shutil
import struct
import subprocess
import sys
import sysconfig
import unicodedata

EXIT_SKIPPED = 77
LINES = 10_000
ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
sys.path.insert(0, str(ROOT / "build" / "clients"))
HEADER = struct.Struct("<8s2I6Q")
LLAMA3 = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}|"
    r" ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
QWEN2 = LLAMA3.replace(r"\p{N}{1,3}", r"\p{N}")
# English, French, German, Russian, Greek, Chinese, Japanese, Korean, Arabic, Hindi, Hebrew, Thai;
# characters that normalize to others, emoji, odd spaces, numbers, special tokens, runs.
SENTENCES = """The quick brown fox doesn't jump; it's WE'LL see, they'd say I'VE been.
\u00c7a va tr\u00e8s bien \u2014 d\u00e9j\u00e0 vu \u00e0 No\u00ebl, \u0153uvre, na\u00efvet\u00e9.
Gr\u00f6\u00dfe, F\u00fc\u00dfe, STRASSE, \u00dcbermut und \u017fonderbar'\u017f \u017f.
\u0421\u044a\u0435\u0448\u044c \u0435\u0449\u0451 \u044d\u0442\u0438\u0445 \u043c\u044f\u0433\u043a\u0438\u0445 \u0444\u0440\u0430\u043d\u0446\u0443\u0437\u0441\u043a\u0438\u0445 \u0431\u0443\u043b\u043e\u043a, \u0434\u0430 \u0432\u044b\u043f\u0435\u0439 \u0447\u0430\u044e.
\u039e\u03b5\u03c3\u03ba\u03b5\u03c0\u03ac\u03b6\u03c9 \u03c4\u03b7\u03bd \u03c8\u03c5\u03c7\u03bf\u03c6\u03b8\u03cc\u03c1\u03b1 \u03b2\u03b4\u03b5\u03bb\u03c5\u03b3\u03bc\u03af\u03b1.
\u654f\u6377\u7684\u68d5\u8272\u72d0\u72f8\u8df3\u8fc7\u61d2\u72d7\u3002\uff11\uff12\uff13\uff14\uff15\uff0c\u5168\u89d2\uff21\uff22\uff23\uff01
\u3044\u308d\u306f\u306b\u307b\u3078\u3068 \u3061\u308a\u306c\u308b\u3092\u3002\uff76\uff80\uff76\uff85 \uff76\uff9e\uff77\uff9e\uff78\uff9e
\ub2e4\ub78c\uc950 \ud5cc \uccc7\ubc14\ud034\uc5d0 \ud0c0\uace0\ud30c \uac01\uac01
\u0646\u0635 \u062d\u0643\u064a\u0645 \u0644\u0647 \u0633\u0631 \u0642\u0627\u0637\u0639 \u0648\u0630\u0648 \u0634\u0623\u0646 \u0639\u0638\u064a\u0645 \u0661\u0662\u0663
\u0926\u0938\u094d\u092f\u0941 \u0930\u093e\u0935\u0923 \u0928\u0947 \u0915\u0939\u093e: \u0967\u0968\u0969 \u0928\u092e\u0938\u094d\u0924\u0947
\u05d0\u05d9\u05d6\u05d4 \u05db\u05d9\u05e3 \u05e9\u05e9\u05de\u05e2\u05ea\u05dd \u05d0\u05ea \u05e9\u05de\u05d9
\u0e01\u0e34\u0e19\u0e02\u0e49\u0e32\u0e27\u0e2b\u0e23\u0e37\u0e2d\u0e22\u0e31\u0e07 \u0e51\u0e52\u0e53
e\u0301 A\u030A \u1E9B\u0323 \u212B \uFB01 \uFB03 \u00BD \u2460 \u3392 x\u0327\u0301
\U0001f469\u200d\U0001f469\u200d\U0001f467\u200d\U0001f466 \U0001f44d\U0001f3fd \U0001f1e9\U0001f1ea\U0001f1eb\U0001f1f7 \u2615\ufe0f \U0001F1E6
\u00A0nbsp\u2003em\u3000ideographic\u200Bzero\u180Emongolian\u0085nel\u2028ls
tabs\t\tand   many    spaces     \t mixed \t
12345678901234567890 3.14159 0x7fff 1,000,000 \u00b2\u00b3 \u2167 \u00bd
<|endoftext|> inside <|end| and <s> </s> <unk> <pad> \u2581under\u2581score
--------====== aaaaaaaaaaaa abababababab ............ ((((((()))))))""".split("\n")


def text_files():
    """Files of text that every machine has that runs this."""
    for folder, endings in (
        (pathlib.Path("/usr/share/common-licenses"), ("",)),
        (pathlib.Path(sysconfig.get_paths()["stdlib"]), (".py", ".txt")),
        (ROOT, (".md", ".h", ".cpp")),
    ):
        for path in sorted(folder.glob("*") if folder != ROOT else folder.rglob("docs/**/*")):
            if path.is_file() and path.suffix in endings:
                yield path


def real_lines():
    lines = []
    for path in text_files():
        lines += path.read_text(encoding="utf-8", errors="replace").splitlines(keepends=True)
        if len(lines) > 4 * LINES:
            break
    assert len(lines) >= LINES, len(lines)
    return lines[:: len(lines) // LINES][:LINES]


def all_characters():
    """Lines of every assigned or unassigned character, with a letter and a space around some."""
    characters = [chr(c) for c in range(1, 0x110000) if not 0xD800 <= c < 0xE000]
    for i in range(0, len(characters), 256):
        yield "".join(characters[i : i + 256])
    for i in range(0, 0x3400, 64):
        yield "a".join(characters[i : i + 64])
        yield " ".join(characters[i : i + 64])


def random_documents(seed):
    draw = random.Random(seed)
    for _ in range(1000):
        size = draw.randrange(1, 200)
        yield draw.randbytes(size).decode(errors="replace")
        ascii_bytes = bytes(draw.choice(b" \n\r\t'sdlrtvem09azAZ.,-") for _ in range(size))
        yield ascii_bytes.decode()
        pool = draw.choice(SENTENCES) + " \u0301\u0327\u200d\ufe0f"
        yield "".join(draw.choice(pool) for _ in range(size))


def charsmap():
    """A charsmap of SentencePiece: its trie in darts-clone's layout."""
    entries = {"\uff21": "A", "\uff22": "B", "\u00bd": "1/2", "\t": " ", "\n": " ", "\r": " ",
               "\ufb01": "fi", "e\u0301": "\u00e9", "\u3000": " ", "\u2460": "1", "\u00ad": ""}
    texts, places = b"", {}
    for key, value in entries.items():
        places[key.encode()] = len(texts)
        texts += value.encode() + b"\0"
    return base64.b64encode(double_array(places) + texts).decode()


def double_array(places):
    """u32 bytes of the trie, then its units; each node's children lie in a block of 256."""
    units, nodes = {}, [b""]
    for key in places:
        for end in range(1, len(key) + 1):
            if key[:end] not in nodes:
                nodes.append(key[:end])
    block = {node: 256 * (i + 1) for i, node in enumerate(nodes)}
    for node in nodes:
        position = 0 if not node else block[node[:-1]] ^ node[-1]
        label = 0 if not node else node[-1]
        offset = position ^ block[node]
        assert offset < 1 << 21
        leaf = node in places
        units[position] = offset << 10 | leaf << 8 | label
        if leaf:
            units[block[node]] = 1 << 31 | places[node]
    size = 256 * (len(nodes) + 1)
    packed = struct.pack(f"<{size}I", *(units.get(i, 0) for i in range(size)))
    return struct.pack("<I", len(packed)) + packed


def byte_level(pattern, lines, *, normalizer=None, ignore_merges=False, prefix=False):
    from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, trainers

    made = Tokenizer(models.BPE(ignore_merges=ignore_merges))
    if normalizer is not None:
        made.normalizer = normalizer
    if pattern is None:
        made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=prefix)
    else:
        made.pre_tokenizer = pre_tokenizers.Sequence([
            pre_tokenizers.Split(Regex(pattern), "isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ])
    made.decoder = decoders.ByteLevel()
    made.train_from_iterator(lines, trainers.BpeTrainer(
        vocab_size=3000, show_progress=False, special_tokens=["<|endoftext|>", "<|end|"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet()))
    made.add_tokens(["foo bar", "\u212b"])
    return made


def unigram(lines, *, normalizer, scheme="always", byte_fallback=False):
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

    made = Tokenizer(models.Unigram())
    if normalizer is not None:
        made.normalizer = normalizer
    made.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme=scheme)
    made.decoder = decoders.Metaspace(prepend_scheme=scheme)
    extra = [f"<0x{i:02X}>" for i in range(256)] if byte_fallback else []
    made.train_from_iterator(lines, trainers.UnigramTrainer(
        vocab_size=2000, show_progress=False, unk_token="<unk>",
        special_tokens=["<unk>", "<s>", "</s>"]))
    if byte_fallback:
        state = json.loads(made.to_str())
        state["model"]["byte_fallback"] = True
        state["model"]["vocab"] += [[token, -30.0] for token in extra]
        made = Tokenizer.from_str(json.dumps(state))
    return made


def judges(lines):
    from tokenizers import Regex, normalizers

    precompiled = normalizers.Precompiled(base64.b64decode(charsmap()))
    squeeze = normalizers.Replace(Regex(" {2,}"), " ")
    yield "gpt2", byte_level(None, lines)
    yield "gpt2_prefix", byte_level(None, lines, prefix=True)
    yield "llama3", byte_level(LLAMA3, lines, ignore_merges=True)
    yield "qwen2", byte_level(QWEN2, lines, normalizer=normalizers.NFC())
    yield "unigram", unigram(lines, normalizer=None)
    yield "unigram_nmt", unigram(
        lines, normalizer=normalizers.Sequence([normalizers.Nmt(), normalizers.NFKC(), squeeze]))
    yield "unigram_charsmap", unigram(
        lines, normalizer=normalizers.Sequence([precompiled, squeeze]), byte_fallback=True)
    yield "unigram_first", unigram(
        lines, normalizer=normalizers.Strip(), scheme="first")


def token_file(path):
    """The documents of a token file, by docs/design/data.md."""
    data = path.read_bytes()
    magic, version, id_bytes, tokens, documents, vocabulary, *_ = HEADER.unpack_from(data)
    assert (magic, version) == (b"SHERDTOK", 1)
    end = HEADER.size + tokens * id_bytes
    ids = struct.unpack_from(f"<{tokens}{'H' if id_bytes == 2 else 'I'}", data, HEADER.size)
    offsets = struct.unpack_from(f"<{documents + 1}Q", data, (end + 7) // 8 * 8)
    assert all(i < vocabulary for i in ids)
    return [list(ids[a:b]) for a, b in zip(offsets, offsets[1:])]


def run(*words):
    done = subprocess.run([str(word) for word in words], capture_output=True, check=False)
    if done.returncode != 0:
        sys.exit(f"{words} ended with {done.returncode}:\n{done.stderr.decode()}")
    return done.stdout


def unknown_characters(normalizer):
    """What the Unicode tables inside the judge's normalizers are too old to know.

    A mark that they know moves behind one of a lower class.
    """
    found = set()
    for character in map(chr, range(0x80, 0x110000)):
        marks = unicodedata.combining(character)
        moves = marks > 1 and not normalizer.normalize_str(character + "\u0334").startswith("\u0334")
        changes = unicodedata.normalize("NFKC", character) != character
        stays = changes and normalizer.normalize_str(character) == character
        if unicodedata.category(character) == "Cn" or moves or stays:
            found.add(character)
    return found


def without(characters, documents):
    left = ("".join(c for c in text if c not in characters) for text in documents)
    return [text for text in left if text]


def compare(sherd, name, judge, documents, folder):
    (folder / "tokenizer").mkdir(parents=True)
    judge.save(str(folder / "tokenizer" / "tokenizer.json"))
    with open(folder / "in.jsonl", "w") as file:
        file.writelines(json.dumps({"text": text}) + "\n" for text in documents)
    run(sherd, "data", "prepare", "--tokenizer", folder / "tokenizer", "--out", folder / "out",
        folder / "in.jsonl")  # fmt: skip
    found = token_file(folder / "out" / "train.tokens")
    wanted = [each.ids for each in judge.encode_batch(documents, add_special_tokens=False)]
    assert len(found) == len(wanted) == len(documents), (len(found), len(documents))
    wrong = [i for i, (a, b) in enumerate(zip(found, wanted)) if a != b]
    for i in wrong[:5]:
        first = next(k for k in range(len(wanted[i]) + 1) if found[i][:k + 1] != wanted[i][:k + 1])
        print(f"{name}: {documents[i]!a}\n  from id {first} on: found {found[i][first:first + 20]}, "
              f"wanted {wanted[i][first:first + 20]}")
    assert not wrong, f"{name}: {len(wrong)} of {len(documents)} documents differ"
    shown = run(sherd, "data", "show", "--count", len(documents), folder / "out").splitlines()
    assert len(shown) == len(documents)
    for text, ids in zip(shown, wanted):
        decoded = judge.decode(ids, skip_special_tokens=False)
        assert json.loads(text)["text"] == decoded, (name, ids, text, decoded)
    print(f"{name}: {len(documents)} documents, {sum(map(len, wanted))} equal ids")


def main():
    sherd, scratch = pathlib.Path(sys.argv[1]), pathlib.Path(sys.argv[2])
    seed = int(sys.argv[3]) if len(sys.argv) > 3 else random.SystemRandom().randrange(2**32)
    try:
        import tokenizers
    except ImportError as error:
        print(f"skipped: {error}")
        sys.exit(EXIT_SKIPPED)
    print(f"seed {seed}, tokenizers {tokenizers.__version__}")
    shutil.rmtree(scratch, ignore_errors=True)
    lines = real_lines()
    documents = lines + SENTENCES + list(all_characters()) + list(random_documents(seed))
    documents += ["\n".join(SENTENCES), "a" * 5000, "foo bar<|endoftext|>foo  bar "]
    unknown = unknown_characters(tokenizers.normalizers.NFKC())
    print(f"{len(unknown)} characters are newer than the judge's normalizers")
    unicode_forms = {"qwen2", "nmt"}
    only = sys.argv[4] if len(sys.argv) > 4 else ""
    for name, judge in judges(lines[::4] + 20 * SENTENCES):
        if only in name:
            old = judge.normalizer and unicode_forms & set(name.split("_"))
            compare(sherd, name, judge, without(unknown, documents) if old else documents,
                    scratch / name)


if __name__ == "__main__":
    main()
