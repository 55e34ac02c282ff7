// SPDX-License-Identifier: Apache-2.0
//
// `sherd data prepare`: text becomes a folder with train.tokens, validation.tokens where some of
// the documents are kept for it, the tokenizer's files, and prepared.json, which says what was
// taken. Thread rule: one thread.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

namespace sherd::tools {

struct PrepareOptions {
  std::string tokenizer{};  // A folder, or "bytes".
  std::string out{};
  std::vector<std::string> inputs{};
  std::string documents = "auto";  // See document_format().
  std::string field = "text";      // Of a JSON line; a column of Parquet.
  std::string python = "python3";  // Reads Parquet; see ParquetOptions.
  std::string eos{};      // A token; empty: that of the tokenizer's files.
  double validation = 0;  // The share of documents, evenly spread.
};

struct TakenFile {
  std::string path;
  std::int64_t bytes = 0;
  std::int64_t documents = 0;
  std::int64_t tokens = 0;
};

struct LeftOutFile {
  std::string path;
  std::string reason;
};

struct PrepareReport {
  std::vector<TakenFile> taken;
  std::vector<LeftOutFile> left_out;
  std::int64_t bytes = 0;  // Of the files taken.
  std::int64_t documents = 0;
  std::int64_t tokens = 0;  // Of both files.
  std::int64_t validation_documents = 0;
  std::int64_t validation_tokens = 0;
  std::int64_t vocabulary = 0;
  bool has_eos = false;
};

// Whether a document, counted from 0, is kept for validation.
bool is_for_validation(std::int64_t document, double share);

// `progress` is called after each file with how many are done and how many there are. Throws Error
// naming path, expected and found: no tokenizer, a named file that is no text, what
// for_each_document() and for_each_parquet_row() refuse, no document at all, a folder that has data
// already, a disk that refuses it. Nothing is called train.tokens then.
PrepareReport prepare(
    const PrepareOptions& options,
    const std::function<void(std::size_t, std::size_t)>& progress);

}  // namespace sherd::tools
