// SPDX-License-Identifier: Apache-2.0
//
// A token file holds the ids of many documents, one after the other, and where each begins. `sherd
// data prepare` writes it. docs/design/data.md describes its format, which any program can read.
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

// Writes a token file. Until finish() the file has another name, so that nobody reads half a file.
// Thread rule: one thread.
class TokenFileWriter {
 public:
  // Throws Error, naming the path, if the file cannot be made, if another writer of this path, also
  // of another process, has not ended, or if the vocabulary is not positive.
  TokenFileWriter(const std::string& path, const TokenFileOptions& options);
  // Removes an unfinished file.
  ~TokenFileWriter();
  TokenFileWriter(const TokenFileWriter&) = delete;
  TokenFileWriter& operator=(const TokenFileWriter&) = delete;

  // Appends a document. Throws Error, and writes nothing, if an id is outside the vocabulary or the
  // disk refuses the write.
  void add(const std::vector<std::int64_t>& ids);

  // Makes the file durable and gives it its name, replacing an existing file. Neither add() nor
  // finish() may be called after it. Throws Error if the disk refuses the write.
  void finish();

  std::int64_t documents() const;
  std::int64_t tokens() const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

// Reads a token file. Thread rule: any thread, nothing changes after construction.
class TokenFile {
 public:
  // Maps the file and reads its header, not the ids. Throws Error, saying the path, what was
  // expected and what was found, if the file is missing, has another kind, version or length, or
  // has a damaged header.
  explicit TokenFile(const std::string& path);
  ~TokenFile();
  TokenFile(const TokenFile&) = delete;
  TokenFile& operator=(const TokenFile&) = delete;

  std::int64_t documents() const;
  std::int64_t tokens() const;
  std::int64_t vocabulary() const;
  std::uint64_t tokenizer_digest() const;
  // XXH3 of the ids as they are stored, computed when the file was written.
  std::uint64_t ids_digest() const;

  // The size of an id, a little-endian word: 2 or 4 bytes.
  std::int64_t id_bytes() const;
  // All ids, tokens() * id_bytes() bytes. Valid while this object lives.
  const char* ids() const;

  // The ids of a document. Throws Error if there is no document with that index.
  std::vector<std::int64_t> document(std::int64_t index) const;

  // Reads all of the file. Throws Error, naming the path, if the ids are not those that were
  // written, or if the documents do not follow each other from the first token to the last.
  void verify() const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace sherd::data
