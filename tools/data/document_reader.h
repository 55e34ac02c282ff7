// SPDX-License-Identifier: Apache-2.0
//
// How a file of text is cut into documents. Thread rule: pure function.
#pragma once

#include <functional>
#include <string>
#include <string_view>

namespace sherd::tools {

struct DocumentOptions {
  // file: it is one document; line: each line that is not blank, without its end; paragraph: what
  // blank lines separate; jsonl: one field of each line, which is an object; auto: jsonl for .jsonl
  // and .ndjson, file for others. The documents of a Parquet file are always its rows.
  std::string format = "auto";
  // The field of a JSON line, or the column of a Parquet file.
  std::string field = "text";
  // Reads Parquet: a program on PATH, or a path.
  std::string python = "python3";
};

// The format of a file, which is never "auto". Throws Error for an unknown name.
std::string document_format(const std::string& name, const std::string& path);

// Calls `each` with the documents of a file in order, without empty ones. `path` is for messages
// and "auto". Throws Error naming path, line, expected and found for a line that is no JSON object
// or lacks the field.
void for_each_document(
    std::string_view content,
    const std::string& path,
    const DocumentOptions& options,
    const std::function<void(std::string_view)>& each);

}  // namespace sherd::tools
