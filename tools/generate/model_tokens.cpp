// SPDX-License-Identifier: Apache-2.0
#include "generate/model_tokens.h"

#include <filesystem>
#include <sherd/base/error.h>

namespace sherd::tools {
namespace {

std::unique_ptr<data::Tokenizer> tokenizer_of(const ModelSource& source) {
  const auto path = source.folder + "/tokenizer.json";
  const auto vocabulary = std::to_string(source.vocabulary);
  std::error_code ignored;
  if (!std::filesystem::exists(path, ignored)) {
    if (!source.reads_bytes()) {
      throw Error(
          path + ": expected the tokenizer of a model with a vocabulary of " +
          vocabulary + ", found no such file");
    }
    return data::byte_tokenizer();
  }
  auto tokenizer = data::load_tokenizer(source.folder);
  if (tokenizer->vocab_size() > source.vocabulary) {
    throw Error(
        path + ": expected a tokenizer of at most " + vocabulary +
        " ids, the vocabulary of the model, found " +
        std::to_string(tokenizer->vocab_size()));
  }
  return tokenizer;
}

}  // namespace

ModelTokens::ModelTokens(const ModelSource& source)
    : tokenizer_(tokenizer_of(source)), vocabulary_(source.vocabulary) {}

void ModelTokens::check(
    const std::vector<std::int64_t>& ids, const std::string& what) const {
  for (const auto id : ids) {
    if (id < 0 || id >= vocabulary_) {
      throw Error(
          what + ": expected token ids below " + std::to_string(vocabulary_) +
          ", the vocabulary of the model, found " + std::to_string(id));
    }
  }
}

std::vector<std::int64_t> ModelTokens::encode(
    const std::string& text, const std::string& what) {
  auto ids = tokenizer_->encode(text);
  check(ids, what);
  return ids;
}

std::vector<std::int64_t> ModelTokens::encode_beginning(
    const std::string& text, const std::string& what) {
  auto ids = tokenizer_->special().before;
  const auto rest = encode(text, what);
  ids.insert(ids.end(), rest.begin(), rest.end());
  if (ids.empty()) {
    throw Error(what + ": expected a text of at least 1 token, found none");
  }
  return ids;
}

}  // namespace sherd::tools
