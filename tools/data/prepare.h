// SPDX-License-Identifier: Apache-2.0
//
// `sherd data prepare`: turns text into a folder with train.tokens, validation.tokens if some of
// the documents are kept for it, the tokenizer's files, and prepared.json, which says what was
// taken. Thread rule: one thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>
#include "data/document_reader.h"
#include "data/input_files.h"

namespace sherd::tools {

struct PrepareOptions {
  std::string tokenizer{};  // A folder, or "bytes".
  std::string out{};
  std::vector<std::string> inputs{};
  DocumentOptions documents{};
  std::string eos{};      // A token; if empty, that of the tokenizer's files.
  double validation = 0;  // The share of documents, spread evenly.
};

struct PrepareReport {
  std::size_t taken = 0;  // How many files.
  std::vector<InputFile> left_out;
  std::int64_t bytes = 0;  // The size of the files taken.
  std::int64_t documents = 0;
  std::int64_t tokens = 0;  // In both files.
  std::int64_t validation_documents = 0;
  std::int64_t validation_tokens = 0;
  std::int64_t vocabulary = 0;
  bool has_eos = false;
};

// Whether a document, counted from 0, is kept for validation.
bool is_for_validation(std::int64_t document, double share);

// `progress` is called after each file with the number of files done and of all. Throws Error
// naming path, expected and found: there is no tokenizer, a named file is no text,
// for_each_document() or for_each_parquet_row() refuses a file, there is no document at all, the
// folder already has data, or the disk refuses the data. Then there is no file named train.tokens.
PrepareReport prepare(
    const PrepareOptions& options,
    const std::function<void(std::size_t, std::size_t)>& progress);

}  // namespace sherd::tools
