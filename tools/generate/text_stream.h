// SPDX-License-Identifier: Apache-2.0
//
// TextStream turns tokens that arrive one by one into pieces of text that can be printed at once.
// If a token ends in the middle of a character, its bytes wait for the rest. Thread rule: one
// thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>
#include <sherd/data/tokenizer.h>

namespace sherd::tools {

class TextStream {
 public:
  // Continues after `prompt`, whose text is not repeated. The tokenizer must outlive it.
  TextStream(
      const data::Tokenizer& tokenizer, std::vector<std::int64_t> prompt);

  // The text that the token adds; may be empty. A model may have more tokens than its tokenizer,
  // which pad the vocabulary to a round number; they have no text.
  std::string add(std::int64_t id);
  // The text that still waits. Call it at the end.
  std::string finish();

  // All tokens, including those of the prompt.
  const std::vector<std::int64_t>& ids() const { return ids_; }

 private:
  const data::Tokenizer& tokenizer_;
  std::vector<std::int64_t> ids_;
  std::vector<std::int64_t> with_text_;  // The tokens that the tokenizer has.
  // How many bytes of their text were returned.
  std::size_t shown_ = 0;
};

}  // namespace sherd::tools
