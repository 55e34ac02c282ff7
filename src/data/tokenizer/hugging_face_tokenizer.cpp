// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <filesystem>
#include <sherd/data/tokenizer.h>
#include "base/check.h"
#include "base/digest.h"
#include "base/mapped_file.h"
#include "data/tokenizer/added_tokens.h"
#include "data/tokenizer/component.h"
#include "data/tokenizer/stages.h"
#include "data/tokenizer/utf8.h"

namespace sherd::data {
namespace {

using Json = nlohmann::json;

const Json kNull;

// A part of tokenizer.json that may be missing.
Component part(const Json& json, const std::string& path, const char* name) {
  return {json.contains(name) ? json[name] : kNull, path + ": " + name};
}

std::unique_ptr<TokenizerModel> model_of(
    const Component& model, const PreTokenizer& pre_tokenizer) {
  // Old files do not name their type.
  const auto type = model.json.value(
      "type", model.json.contains("merges") ? "BPE" : "Unigram");
  if (type == "BPE") {
    if (!pre_tokenizer.has_byte_level) {
      model.refuse("ByteLevel as the last pre-tokenizer of BPE", "none");
    }
    return byte_level_bpe_model(model);
  }
  if (type != "Unigram") {
    model.refuse("a model of BPE and Unigram", type);
  }
  if (pre_tokenizer.has_byte_level) {
    model.refuse("no ByteLevel pre-tokenizer with Unigram", "one");
  }
  return unigram_model(model);
}

// The content of a token in a settings file: a text, or an object that contains one.
std::string token_text(const Json& settings, const char* name) {
  const auto& token = settings.contains(name) ? settings[name] : kNull;
  if (token.is_object()) {
    return token.value("content", "");
  }
  return token.is_string() ? token.get<std::string>() : "";
}

class HuggingFaceTokenizer : public Tokenizer {
 public:
  HuggingFaceTokenizer(
      const Json& json,
      const std::string& folder,
      const std::string& path,
      std::uint64_t digest)
      : normalizer_(normalizer_steps(part(json, path, "normalizer"))),
        pre_tokenizer_(pre_tokenizer_of(part(json, path, "pre_tokenizer"))),
        model_(model_of({json.at("model"), path + ": model"}, pre_tokenizer_)),
        decoder_(decoder_of(part(json, path, "decoder"))),
        tokens_(model_->tokens()),
        added_(added_vocabulary_of(
            part(json, path, "added_tokens"), normalizer_, tokens_)),
        digest_(digest) {
    read_post_processor(part(json, path, "post_processor"), special_);
    special_.bos = named_token(folder, "bos_token");
    special_.eos = named_token(folder, "eos_token");
  }

  std::vector<std::int64_t> encode(std::string_view text) override {
    std::string repaired;
    if (first_invalid_utf8(text) != text.size()) {
      repaired = repaired_utf8(text);
      text = repaired;
    }
    std::vector<std::int64_t> ids;
    for (const auto& raw : added_.raw.cut({text, std::nullopt, true})) {
      if (raw.id) {
        ids.push_back(*raw.id);
      } else {
        encode_part(raw, ids);
      }
    }
    return ids;
  }

  std::string decode(const std::vector<std::int64_t>& ids) const override {
    std::vector<std::string> tokens;
    for (const auto id : ids) {
      SHERD_CHECK(
          id >= 0 && id < vocab_size(), "[data] expected ids in [0, ",
          vocab_size(), "), found ", id);
      tokens.push_back(tokens_[static_cast<std::size_t>(id)]);
    }
    return repaired_utf8(decoder_(tokens));
  }

  std::int64_t vocab_size() const override {
    return static_cast<std::int64_t>(tokens_.size());
  }
  const SpecialTokens& special() const override { return special_; }
  std::uint64_t digest() const override { return digest_; }

 private:
  // The id of the token of that name in the settings. The first of the files that names it decides;
  // one may be missing.
  std::optional<std::int64_t> named_token(
      const std::string& folder, const char* name) const {
    for (const char* file :
         {"tokenizer_config.json", "special_tokens_map.json"}) {
      const auto path = (std::filesystem::path(folder) / file).string();
      if (!std::filesystem::exists(path)) {
        continue;
      }
      try {
        const auto mapped = MappedFile::open(path).value();
        const auto token = token_text(Json::parse(mapped.bytes()), name);
        if (!token.empty()) {
          const auto found = std::ranges::find(tokens_, token);
          SHERD_CHECK(
              found != tokens_.end(), path, ": expected ", name,
              " to be a token of tokenizer.json, found \"", token, "\"");
          return found - tokens_.begin();
        }
      } catch (const Json::exception& error) {
        throw Error(path + ": expected JSON, found: " + error.what());
      }
    }
    return std::nullopt;
  }

  // Encodes text without added tokens that are searched in the original text.
  void encode_part(const TextPart& raw, std::vector<std::int64_t>& ids) {
    std::string changed;
    auto text = raw;
    if (!normalizer_.empty()) {
      changed = normalized(normalizer_, raw.text);
      text.text = changed;
      text.at_start = raw.at_start && keeps_first_character(raw.text);
    }
    for (const auto& each : added_.normalized.cut(text)) {
      if (each.id) {
        ids.push_back(*each.id);
        continue;
      }
      pre_tokenizer_.cut({each.text, each.at_start}, [&](const Piece& piece) {
        model_->encode(piece.text, ids);
      });
    }
  }

  // Whether normalization keeps a part of the first character. If not, what follows does not count
  // as the start of the document for "prepend_scheme": "first".
  bool keeps_first_character(std::string_view text) const {
    const std::string first(text.substr(0, character_bytes(text, 0)));
    return normalized(normalizer_, first + "x") != normalized(normalizer_, "x");
  }

  const std::vector<TextStep> normalizer_;
  const PreTokenizer pre_tokenizer_;
  const std::unique_ptr<TokenizerModel> model_;
  const Decoder decoder_;
  std::vector<std::string> tokens_;  // By id, including added ones.
  const AddedVocabulary added_;
  SpecialTokens special_;
  const std::uint64_t digest_;
};

}  // namespace

std::unique_ptr<Tokenizer> load_tokenizer(const std::string& folder) {
  const auto path = tokenizer_file(folder);
  SHERD_CHECK_AS(
      kUnavailable, !path.empty(), folder.empty() ? "." : folder,
      ": expected a folder with a tokenizer.json, found none");
  const auto file = MappedFile::open(path).value();
  try {
    return std::make_unique<HuggingFaceTokenizer>(
        Json::parse(file.bytes()), folder, path, digest_of(file.bytes()));
  } catch (const Json::exception& error) {
    throw Error(
        path + ": expected the JSON of a tokenizer, found: " + error.what());
  }
}

}  // namespace sherd::data
