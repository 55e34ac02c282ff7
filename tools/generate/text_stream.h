// SPDX-License-Identifier: Apache-2.0
//
// TextStream turns tokens that come one by one into pieces of text that can be printed at once. A
// token may end in the middle of a character; its bytes wait for the rest. Thread rule: one thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>
#include <sherd/data/tokenizer.h>

namespace sherd::tools {

class TextStream {
 public:
  // Goes on after `prompt`, whose text is not repeated. The tokenizer must outlive it.
  TextStream(
      const data::Tokenizer& tokenizer, std::vector<std::int64_t> prompt);

  // What the token adds to the text; may be empty. A model may have more tokens than its
  // tokenizer, which pad the vocabulary to a round number; they have no text.
  std::string add(std::int64_t id);
  // What still waits. Call it at the end.
  std::string finish();

  // All tokens, the prompt's included.
  const std::vector<std::int64_t>& ids() const { return ids_; }

 private:
  const data::Tokenizer& tokenizer_;
  std::vector<std::int64_t> ids_;
  std::vector<std::int64_t> with_text_;  // Those that the tokenizer has.
  std::size_t shown_ = 0;                // Bytes of their text.
};

}  // namespace sherd::tools
