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
  // Takes the tokenizer that lies next to the model, or else bytes for a vocabulary of 256 or less.
  // Throws Error if none fits: there is none at all, it is damaged, or it has ids that the model
  // does not have.
  explicit ModelTokens(const ModelSource& source);

  // The ids of a text. Throws Error that begins with `what` if one is outside the model's
  // vocabulary.
  std::vector<std::int64_t> encode(
      const std::string& text, const std::string& what);

  // The same, preceded by what the tokenizer puts before each text. Throws Error if there are no
  // ids at all.
  std::vector<std::int64_t> encode_beginning(
      const std::string& text, const std::string& what);

  // Throws Error that begins with `what` if the model does not have an id.
  void check(
      const std::vector<std::int64_t>& ids, const std::string& what) const;

  const data::Tokenizer& tokenizer() const { return *tokenizer_; }

 private:
  std::unique_ptr<data::Tokenizer> tokenizer_;
  std::int64_t vocabulary_;
};

}  // namespace sherd::tools
