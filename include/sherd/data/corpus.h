// SPDX-License-Identifier: Apache-2.0
//
// Corpus is a text as one long row of token ids that is mapped from files. Either bytes are tokens
// (vocabulary 256), or a `.bin` holds token ids as little-endian 16-bit words, or the corpus is a
// token file of `sherd data prepare`. It owns the mappings and neither copies nor moves. Thread
// rule: any thread, nothing changes after construction.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

namespace sherd::data {

struct CorpusOptions {
  // Uses only the first this many bytes. 0: all. If that cuts a token of a `.bin`, the token is
  // left out.
  std::int64_t bytes_max = 0;
  // The size of the model's vocabulary; every id must be below it. 0: 256 for bytes, the largest id
  // + 1 for a `.bin`, and what the header of a token file says.
  std::int64_t vocabulary = 0;
};

class Corpus {
 public:
  // `path` is a file or a folder. A folder stands for all files below it, in the byte order of their
  // paths, one after the other without a separator; links are followed, also those to folders. A
  // file ending in ".bin", or a folder with only such files, holds 16-bit ids. A file ending in
  // ".tokens" is a token file, and a folder with a train.tokens stands for that file. Reads every
  // byte once, for the hash and to check ids, except for a token file, which contains its hash.
  // Throws Error, saying the path, what was expected and what was found, if the path is missing,
  // unreadable or empty, if a folder contains a broken link or a pipe, if a `.bin` has an odd size,
  // if an id is outside the vocabulary, and if the tokenizer that made a token file is not the
  // tokenizer.json beside it.
  explicit Corpus(const std::string& path, const CorpusOptions& options = {});
  ~Corpus();
  Corpus(const Corpus&) = delete;
  Corpus& operator=(const Corpus&) = delete;

  const std::string& path() const;
  std::int64_t tokens() const;  // At least 1.
  std::int64_t vocabulary() const;
  // A hash of the tokens only: the same for one file or many, and on every machine. Not for
  // security.
  std::uint64_t hash() const;
  // Tokenizer::digest() of the tokenizer that made a token file, or of byte_tokenizer() for text. 0
  // for a `.bin`, which does not say.
  std::uint64_t tokenizer_digest() const;

  // Writes tokens [first, first + count) to `to`. Throws Error if the range is not inside [0,
  // tokens()), or for an id of a damaged token file.
  void copy(std::int64_t first, std::int64_t count, std::int64_t* to) const;

  // Makes the system read these tokens from disk in the background, so that copy() finds them in
  // memory. Throws Error like copy() for the range.
  void read_ahead(std::int64_t first, std::int64_t count) const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace sherd::data
