// SPDX-License-Identifier: Apache-2.0
#include <sherd/data/blended_corpus.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <filesystem>
#include <initializer_list>
#include <iterator>
#include <string_view>
#include <system_error>
#include <nlohmann/json.hpp>
#include <sherd/data/tokenizer.h>
#include "base/check.h"
#include "base/hash.h"
#include "base/mapped_file.h"
#include "base/parent_folder.h"

namespace sherd::data {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::json;

constexpr const char* kBlendName = "blend.json";

// A misspelt key would otherwise be another mixture.
void check_keys(
    const Json& object,
    std::initializer_list<std::string_view> known,
    const std::string& file) {
  for (const auto& item : object.items()) {
    SHERD_CHECK(
        std::ranges::find(known, item.key()) != known.end(), "[data] ", file,
        ": expected no keys but \"", *known.begin(), "\" and \"",
        *std::prev(known.end()), "\" there, found \"", item.key(), "\"");
  }
}

}  // namespace

BlendedCorpus::BlendedCorpus(
    const std::string& path, const CorpusOptions& options)
    : path_(path) {
  if (path.ends_with(kBlendName)) {
    try {
      read(path, options);
    } catch (const Json::exception& error) {
      throw Error(
          "[data] " + path +
          ": expected {\"sources\": [{\"path\": ..., \"weight\": ...}, ...]}, "
          "found: " +
          error.what());
    }
  } else {
    sources_.push_back({.corpus = std::make_unique<Corpus>(path, options)});
    const auto beside = fs::path(path) / "validation.tokens";
    std::error_code missing;
    if (fs::is_regular_file(beside, missing)) {
      validation_ = std::make_unique<Corpus>(
          beside.string(), CorpusOptions{.vocabulary = options.vocabulary});
    }
  }
  check_alike();
}

void BlendedCorpus::read(
    const std::string& file, const CorpusOptions& options) {
  const auto folder = fs::path(file).parent_path();
  const auto json = Json::parse(MappedFile::open(file).value().bytes());
  const auto& listed = json.at("sources");
  check_keys(json, {"sources", "validation"}, file);
  for (const auto& source : listed) {
    const auto path = (folder / source.at("path").get<std::string>()).string();
    check_keys(source, {"path", "weight"}, file);
    const double weight = source.value("weight", 1.0);
    SHERD_CHECK(
        std::isfinite(weight) && weight > 0, "[data] ", file,
        ": expected a weight above 0 for ", path, ", found ", weight);
    sources_.push_back(
        {.corpus = std::make_unique<Corpus>(path, options), .weight = weight});
  }
  SHERD_CHECK(
      !sources_.empty(), "[data] ", file,
      ": expected at least one source, found none");
  if (json.contains("validation")) {
    validation_ = std::make_unique<Corpus>(
        (folder / json["validation"].get<std::string>()).string(),
        CorpusOptions{.vocabulary = options.vocabulary});
  }
}

void BlendedCorpus::check_alike() const {
  std::vector<const Corpus*> all;
  for (const auto& source : sources_) {
    all.push_back(source.corpus.get());
  }
  if (validation_) {
    all.push_back(validation_.get());
  }
  const Corpus* tokenized = nullptr;  // A `.bin` file has no digest.
  for (const auto* corpus : all) {
    SHERD_CHECK(
        corpus->vocabulary() == vocabulary(), "[data] ", corpus->path(),
        ": expected the vocabulary of ", all.front()->path(), ", ",
        vocabulary(), ", found ", corpus->vocabulary());
    if (corpus->tokenizer_digest() != 0) {
      tokenized = tokenized == nullptr ? corpus : tokenized;
      SHERD_CHECK(
          corpus->tokenizer_digest() == tokenized->tokenizer_digest(),
          "[data] ", corpus->path(), ": expected the tokenizer of ",
          tokenized->path(), " (digest ", tokenized->tokenizer_digest(),
          "), found another one (digest ", corpus->tokenizer_digest(), ")");
    }
  }
}

std::int64_t BlendedCorpus::vocabulary() const {
  return sources_.front().corpus->vocabulary();
}

std::int64_t BlendedCorpus::tokens() const {
  std::int64_t sum = 0;
  for (const auto& source : sources_) {
    sum += source.corpus->tokens();
  }
  return sum;
}

std::uint64_t BlendedCorpus::hash() const {
  if (sources_.size() == 1 && !validation_) {
    return sources_.front().corpus->hash();
  }
  Hash64 all;
  for (const auto& source : sources_) {
    all.add(source.corpus->hash())
        .add(std::bit_cast<std::uint64_t>(source.weight));
  }
  return all.add(validation_ ? validation_->hash() : 0).value();
}

std::string BlendedCorpus::tokenizer_folder() const {
  for (const auto& source : sources_) {
    const auto path = source.corpus->path();
    for (const auto& folder : {path, parent_folder(path)}) {
      if (!tokenizer_file(folder).empty() &&
          tokenizer_digest(folder) == source.corpus->tokenizer_digest()) {
        return folder;
      }
    }
  }
  return "";
}

}  // namespace sherd::data
