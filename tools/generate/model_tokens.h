// SPDX-License-Identifier: Apache-2.0
//
// ModelTokens turns texts into token ids that a model can read, and back. It owns the tokenizer.
// Thread rule: one thread.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>
#include <sherd/data/tokenizer.h>
#include "generate/model_source.h"

namespace sherd::tools {

class ModelTokens {
 public:
  // Takes the tokenizer that lies with the model, else bytes for a vocabulary of 256 or less.
  // Throws Error when there is none that fits: none at all, a damaged one, or one with ids that the
  // model does not have.
  explicit ModelTokens(const ModelSource& source);

  // The ids of a text. Throws Error that begins with `what` for one outside the model's vocabulary.
  std::vector<std::int64_t> encode(
      const std::string& text, const std::string& what);

  // The same with what the tokenizer puts before each text. Throws Error for none at all.
  std::vector<std::int64_t> encode_beginning(
      const std::string& text, const std::string& what);

  // Throws Error that begins with `what` for an id that the model does not have.
  void check(
      const std::vector<std::int64_t>& ids, const std::string& what) const;

  const data::Tokenizer& tokenizer() const { return *tokenizer_; }

 private:
  std::unique_ptr<data::Tokenizer> tokenizer_;
  std::int64_t vocabulary_;
};

}  // namespace sherd::tools
