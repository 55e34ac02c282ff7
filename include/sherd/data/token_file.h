// SPDX-License-Identifier: Apache-2.0
//
// A token file holds the ids of many documents, one after the other, and where each begins; what
// `sherd data prepare` writes. docs/design/data.md has its format, which any program can read.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

namespace sherd::data {

struct TokenFileOptions {
  std::int64_t vocabulary = 0;         // Every id is below it.
  std::uint64_t tokenizer_digest = 0;  // Tokenizer::digest().
};

// Writes a token file. Until finish() it has another name, so that nobody reads half a file.
// Thread rule: one thread.
class TokenFileWriter {
 public:
  // Throws Error naming the path when the file cannot be made, or when the vocabulary is none.
  TokenFileWriter(const std::string& path, const TokenFileOptions& options);
  // Removes what was not finished.
  ~TokenFileWriter();
  TokenFileWriter(const TokenFileWriter&) = delete;
  TokenFileWriter& operator=(const TokenFileWriter&) = delete;

  // Appends a document. Throws Error, writing nothing, for an id outside of the vocabulary, and
  // when the disk refuses it.
  void add(const std::vector<std::int64_t>& ids);

  // Makes the file durable and gives it its name, in place of one that was there. No add() after
  // it. Throws Error when the disk refuses it.
  void finish();

  std::int64_t documents() const;
  std::int64_t tokens() const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

// Reads one. Thread rule: any thread, nothing changes after construction.
class TokenFile {
 public:
  // Maps the file and reads its header, not the ids. Throws Error naming the path, what was
  // expected and what was found, for a file that is missing, of another kind, version or length, or
  // whose header is damaged.
  explicit TokenFile(const std::string& path);
  ~TokenFile();
  TokenFile(const TokenFile&) = delete;
  TokenFile& operator=(const TokenFile&) = delete;

  std::int64_t documents() const;
  std::int64_t tokens() const;
  std::int64_t vocabulary() const;
  std::uint64_t tokenizer_digest() const;
  // XXH3 of the ids as they lie in the file, taken when it was written.
  std::uint64_t ids_digest() const;

  // 2 or 4: an id is a little-endian word of so many bytes.
  std::int64_t id_bytes() const;
  // All ids, tokens() * id_bytes() bytes. Valid while this object lives.
  const char* ids() const;

  // The ids of a document. Throws Error when there is none with that number.
  std::vector<std::int64_t> document(std::int64_t index) const;

  // Reads all ids. Throws Error naming the path when they are not those that were written.
  void verify() const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace sherd::data
