// SPDX-License-Identifier: Apache-2.0
#include "data/document_reader.h"

#include <algorithm>
#include <cstdint>
#include <nlohmann/json.hpp>
#include <sherd/base/error.h>

namespace sherd::tools {
namespace {

using Json = nlohmann::json;

bool is_blank(std::string_view line) {
  return line.find_first_not_of(" \t\r") == std::string_view::npos;
}

// Calls `each` with each line, without its "\n" or "\r\n", and with its begin and end in the
// content.
template <typename Function>
void for_each_line(std::string_view content, const Function& each) {
  std::size_t begin = 0;
  while (begin < content.size()) {
    const auto end = std::min(content.find('\n', begin), content.size());
    auto line = content.substr(begin, end - begin);
    if (line.ends_with('\r')) {
      line.remove_suffix(1);
    }
    each(line, begin, end);
    begin = end + 1;
  }
}

void for_each_paragraph(
    std::string_view content,
    const std::function<void(std::string_view)>& each) {
  std::size_t begin = std::string_view::npos;
  std::size_t end = 0;
  const auto finish = [&] {
    if (begin != std::string_view::npos) {
      each(content.substr(begin, end - begin));
    }
    begin = std::string_view::npos;
  };
  for_each_line(content, [&](auto line, std::size_t from, std::size_t) {
    if (is_blank(line)) {
      finish();
      return;
    }
    begin = std::min(begin, from);
    end = from + line.size();
  });
  finish();
}

std::string field_of(
    std::string_view line, const std::string& field, const std::string& where) {
  const auto json = Json::parse(line, nullptr, /*allow_exceptions=*/false);
  if (!json.is_object()) {
    throw Error(
        where + ": expected a JSON object, found " +
        (json.is_discarded() ? "something else" : json.type_name()));
  }
  const auto found = json.find(field);
  if (found == json.end() || !found->is_string()) {
    throw Error(
        where + ": expected a field \"" + field + "\" that is text, found " +
        (found == json.end() ? "none" : found->type_name()));
  }
  return found->get<std::string>();
}

}  // namespace

std::string document_format(const std::string& name, const std::string& path) {
  if (name == "auto") {
    const bool json = path.ends_with(".jsonl") || path.ends_with(".ndjson");
    return json ? "jsonl" : "file";
  }
  if (name != "file" && name != "line" && name != "paragraph" &&
      name != "jsonl") {
    throw Error(
        "--documents: expected auto, file, line, paragraph or jsonl, found " +
        name);
  }
  return name;
}

void for_each_document(
    std::string_view content,
    const std::string& path,
    const DocumentOptions& options,
    const std::function<void(std::string_view)>& each) {
  const auto format = document_format(options.format, path);
  if (format == "file") {
    if (!content.empty()) {
      each(content);
    }
    return;
  }
  if (format == "paragraph") {
    for_each_paragraph(content, each);
    return;
  }
  std::int64_t number = 0;
  for_each_line(content, [&](std::string_view line, std::size_t, std::size_t) {
    ++number;
    if (is_blank(line)) {
      return;
    }
    if (format == "line") {
      each(line);
      return;
    }
    const auto text = field_of(
        line, options.field, path + ", line " + std::to_string(number));
    if (!text.empty()) {
      each(text);
    }
  });
}

}  // namespace sherd::tools
