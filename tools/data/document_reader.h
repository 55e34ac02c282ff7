// SPDX-License-Identifier: Apache-2.0
//
// How a file of text is cut into documents. Thread rule: pure function.
#pragma once

#include <functional>
#include <string>
#include <string_view>

namespace sherd::tools {

enum class DocumentFormat {
  kWhole,       // The file is one document.
  kLines,       // Each line that is not blank is a document, without its end.
  kParagraphs,  // Blank lines separate documents.
  kJsonLines,   // Each line is an object, one field of which is the document.
};

// "file", "line", "paragraph", "jsonl" or "auto", for which ".jsonl" and ".ndjson" files are JSON
// lines and others a single document. Throws Error for any other text.
DocumentFormat document_format(
    const std::string& name, const std::string& path);

struct DocumentOptions {
  DocumentFormat format = DocumentFormat::kWhole;
  std::string field = "text";  // For JSON lines.
};

// Calls `each` with the documents of a file in order, without empty ones. `path` is for messages.
// Throws Error naming path, line, expected and found for a line that is no JSON object or lacks the
// field.
void for_each_document(
    std::string_view content,
    const std::string& path,
    const DocumentOptions& options,
    const std::function<void(std::string_view)>& each);

}  // namespace sherd::tools
