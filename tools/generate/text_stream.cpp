// SPDX-License-Identifier: Apache-2.0
#include "generate/text_stream.h"

#include <algorithm>
#include <string_view>
#include <utility>

namespace sherd::tools {
namespace {

// What a tokenizer decodes a cut character to: U+FFFD.
constexpr std::string_view kReplacement = "\xEF\xBF\xBD";

// The number of bytes before the replaced characters at the end of the text; a cut character has at
// most three of them.
std::size_t complete_bytes(std::string_view text) {
  auto rest = text;
  for (int cut = 0; cut < 3 && rest.ends_with(kReplacement); ++cut) {
    rest.remove_suffix(kReplacement.size());
  }
  return rest.ends_with(kReplacement) ? text.size() : rest.size();
}

}  // namespace

TextStream::TextStream(
    const data::Tokenizer& tokenizer, std::vector<std::int64_t> prompt)
    : tokenizer_(tokenizer),
      ids_(std::move(prompt)),
      with_text_(ids_),
      shown_(tokenizer_.decode(ids_).size()) {}

std::string TextStream::add(std::int64_t id) {
  ids_.push_back(id);
  if (id < tokenizer_.vocab_size()) {
    with_text_.push_back(id);
  }
  const auto text = tokenizer_.decode(with_text_);
  const auto end = std::max(complete_bytes(text), shown_);
  const auto first = std::min(std::exchange(shown_, end), text.size());
  return text.substr(first, end - first);
}

std::string TextStream::finish() {
  const auto text = tokenizer_.decode(with_text_);
  return text.substr(std::min(std::exchange(shown_, text.size()), text.size()));
}

}  // namespace sherd::tools
