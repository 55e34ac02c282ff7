// SPDX-License-Identifier: Apache-2.0
//
// Corpus is a text as one long row of token ids that is mapped from files. Bytes are tokens
// (vocabulary 256), a `.bin` holds token ids as little-endian 16-bit words, or `sherd data prepare`
// has written a token file. It owns the mappings and neither copies nor moves. Thread rule: any
// thread, nothing changes after construction.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

namespace sherd::data {

struct CorpusOptions {
  // Uses only the first so many bytes; 0: all. The last token of a `.bin` cut in the middle is left
  // out.
  std::int64_t bytes_max = 0;
  // The size of the model's vocabulary; every id must be below it. 0: 256 for bytes, the largest id
  // + 1 for a `.bin`, what a token file says.
  std::int64_t vocabulary = 0;
};

class Corpus {
 public:
  // `path` is a file, or a folder: all regular files below it, in the byte order of their paths,
  // one after the other without separator (links to folders are not followed). A file ending in
  // ".bin", or a folder of such files only, holds 16-bit ids. A file ending in ".tokens" is a token
  // file, and a folder with a train.tokens is taken for that one. Reads every byte once, for the
  // hash and to check ids, but nothing of a token file, which has its hash with it. Throws Error
  // naming the path, what was expected and what was found, when it is missing, unreadable or empty,
  // when a `.bin` has an odd size, for an id outside the vocabulary, and for a token file that
  // another tokenizer made than the tokenizer.json beside it.
  explicit Corpus(const std::string& path, const CorpusOptions& options = {});
  ~Corpus();
  Corpus(const Corpus&) = delete;
  Corpus& operator=(const Corpus&) = delete;

  const std::string& path() const;
  std::int64_t tokens() const;  // At least 1.
  std::int64_t vocabulary() const;
  // A hash of the token row alone: the same for one file or many, and on every machine. Not for
  // security.
  std::uint64_t hash() const;
  // Tokenizer::digest() of the tokenizer that made a token file, or of byte_tokenizer() for text; 0
  // for a `.bin`, which does not tell.
  std::uint64_t tokenizer_digest() const;

  // Writes tokens [first, first + count) to `to`. Throws Error when the range
  // is not inside [0, tokens()), and for an id of a damaged token file.
  void copy(std::int64_t first, std::int64_t count, std::int64_t* to) const;

  // Lets the system read these tokens from disk meanwhile, so that copy() finds them in memory.
  // Throws Error like copy() for the range.
  void read_ahead(std::int64_t first, std::int64_t count) const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace sherd::data
