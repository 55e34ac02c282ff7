// SPDX-License-Identifier: Apache-2.0
#include "train/sample_text.h"

#include <memory>
#include <sherd/base/error.h>
#include <sherd/data/tokenizer.h>
#include "terminal_text.h"

namespace sherd::tools {
namespace {

using Ids = std::vector<std::int64_t>;

std::string numbers(const Ids& ids) {
  std::string text;
  for (const auto id : ids) {
    text += std::to_string(id) + " ";
  }
  return text;
}

// Only ASCII: a sample of bytes may be cut inside a character.
std::string plain_bytes(const Ids& ids) {
  std::string text;
  for (const auto id : ids) {
    const auto c = static_cast<char>(id);
    const bool plain = c == '\n' || c == '\t' || (c >= ' ' && c <= '~');
    text += plain && id < 256 ? c : '?';
  }
  return text;
}

#ifdef SHERD_TOKENIZER
// Null if the folder has no readable one: a run can end without.
std::unique_ptr<data::Tokenizer> tokenizer_in(const std::string& folder) {
  try {
    return data::tokenizer_file(folder).empty() ? nullptr
                                                : data::load_tokenizer(folder);
  } catch (const Error&) {
    return nullptr;
  }
}

// Ids that the tokenizer lacks pad the vocabulary of the model.
std::string decoded(const data::Tokenizer& tokenizer, Ids ids) {
  std::erase_if(ids, [&](auto id) { return id >= tokenizer.vocab_size(); });
  return printable_on_terminal(tokenizer.decode(ids));
}
#endif

}  // namespace

std::string text_of(
    const Sample& sample, [[maybe_unused]] const std::string& folder) {
  const auto end =
      sample.ids.begin() + static_cast<std::ptrdiff_t>(sample.prompt);
  const Ids before(sample.ids.begin(), end);
  const Ids behind(end, sample.ids.end());
#ifdef SHERD_TOKENIZER
  if (const auto tokenizer = tokenizer_in(folder)) {
    return decoded(*tokenizer, before) + "|" + decoded(*tokenizer, behind);
  }
#endif
  const auto show = sample.bytes ? plain_bytes : numbers;
  return show(before) + "|" + show(behind);
}

}  // namespace sherd::tools
