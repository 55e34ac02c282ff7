// SPDX-License-Identifier: Apache-2.0
#include <filesystem>
#include <system_error>
#include <sherd/data/tokenizer.h>
#include "base/digest.h"
#include "base/mapped_file.h"
#include "base/replace_file.h"
#include "base/status.h"

namespace sherd::data {

std::string tokenizer_file(const std::string& folder) {
  const auto path = std::filesystem::path(folder) / "tokenizer.json";
  std::error_code missing;
  return std::filesystem::is_regular_file(path, missing) ? path.string() : "";
}

std::uint64_t bytes_digest() { return digest_of("bytes"); }

std::uint64_t tokenizer_digest(const std::string& folder) {
  const auto path = tokenizer_file(folder);
  return path.empty() ? bytes_digest()
                      : digest_of(MappedFile::open(path).value().bytes());
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
    const auto content = MappedFile::open(source.string()).value();
    replace_file(target.string(), content.bytes()).throw_if_failed();
    copied.push_back(target.string());
  }
  return copied;
}

}  // namespace sherd::data
