// SPDX-License-Identifier: Apache-2.0
#include <filesystem>
#include <system_error>
#include <sherd/data/tokenizer.h>
#include "base/check.h"

namespace sherd::data {

std::string tokenizer_file(const std::string& folder) {
  const auto path = std::filesystem::path(folder) / "tokenizer.json";
  std::error_code missing;
  return std::filesystem::is_regular_file(path, missing) ? path.string() : "";
}

std::vector<std::string> copy_tokenizer(
    const std::string& from, const std::string& to) {
  namespace fs = std::filesystem;
  std::vector<std::string> copied;
  for (const char* name :
       {"tokenizer.json", "tokenizer_config.json", "special_tokens_map.json",
        "added_tokens.json", "vocab.json", "merges.txt", "tokenizer.model",
        "chat_template.jinja", "generation_config.json"}) {
    const auto source = fs::path(from) / name;
    const auto target = fs::path(to) / name;
    std::error_code failure;
    if (!fs::exists(source, failure) ||
        fs::equivalent(source, target, failure)) {
      continue;
    }
    fs::copy_file(
        source, target, fs::copy_options::overwrite_existing, failure);
    SHERD_CHECK_AS(
        kUnavailable, !failure, "[data] ", target.string(),
        ": expected to copy ", source.string(),
        " there, found: ", failure.message());
    copied.push_back(target.string());
  }
  return copied;
}

}  // namespace sherd::data
