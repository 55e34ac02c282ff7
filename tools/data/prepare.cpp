// SPDX-License-Identifier: Apache-2.0
#include "data/prepare.h"

#include <cmath>
#include <filesystem>
#include <memory>
#include <optional>
#include <system_error>
#include <nlohmann/json.hpp>
#include <sherd/base/error.h>
#include <sherd/data/token_file.h>
#include <sherd/data/tokenizer.h>
#include "base/replace_file.h"
#include "data/parquet_rows.h"
#include "text_file.h"

namespace sherd::tools {
namespace {

namespace fs = std::filesystem;

void expect_no_data(const std::string& folder) {
  if (fs::exists(fs::path(folder) / "train.tokens")) {
    throw Error(
        folder + ": expected a folder without data, found train.tokens");
  }
}

void check(const PrepareOptions& options) {
  if (!(options.validation >= 0 && options.validation < 1)) {
    throw Error(
        "--validation: expected a share in [0, 1), found " +
        std::to_string(options.validation));
  }
  document_format(options.documents.format, "");  // Throws for an unknown one.
  expect_no_data(options.out);
}

// Whether there was none.
bool make_folder(const std::string& path) {
  std::error_code failure;
  const bool made = fs::create_directories(path, failure);
  if (failure) {
    throw Error(
        path + ": expected to make the folder, found: " + failure.message(),
        ErrorCode::kUnavailable);
  }
  return made;
}

std::optional<std::int64_t> end_token(
    data::Tokenizer& tokenizer, const std::string& wanted) {
  if (wanted.empty()) {
    return tokenizer.special().eos;
  }
  const auto ids = tokenizer.encode(wanted);
  if (ids.size() != 1) {
    throw Error(
        "--eos: expected one token of the tokenizer, found " +
        std::to_string(ids.size()) + " for \"" + wanted + "\"");
  }
  return ids.front();
}

// The state of one call of prepare().
class Preparation {
 public:
  explicit Preparation(const PrepareOptions& options)
      : options_(options),
        tokenizer_(
            options.tokenizer == "bytes"
                ? data::byte_tokenizer()
                : data::load_tokenizer(options.tokenizer)),
        eos_(end_token(*tokenizer_, options.eos)) {
    report_.vocabulary = tokenizer_->vocab_size();
    report_.has_eos = eos_.has_value();
  }
  // Removes the folder if it was made for data that were refused: then it is empty, and no other can
  // be removed.
  ~Preparation() {
    train_.reset();
    validation_.reset();
    if (made_folder_) {
      std::error_code not_empty;
      fs::remove(options_.out, not_empty);
    }
  }
  Preparation(const Preparation&) = delete;
  Preparation& operator=(const Preparation&) = delete;

  PrepareReport run(
      const std::function<void(std::size_t, std::size_t)>& progress) {
    const auto files = input_files(options_.inputs);
    made_folder_ = make_folder(options_.out);
    open_writers();
    for (std::size_t i = 0; i < files.size(); ++i) {
      take(files[i]);
      progress(i + 1, files.size());
    }
    if (train_->documents() == 0) {
      throw Error(
          "expected at least one document to train on, found " +
          std::to_string(report_.documents) + " in " +
          std::to_string(files.size()) + " files" + first_reason());
    }
    if (validation_ && validation_->documents() == 0) {
      throw Error(
          "--validation: expected a share that keeps at least one of the " +
          std::to_string(report_.documents) + " documents, found " +
          std::to_string(options_.validation));
    }
    finish();
    return report_;
  }

 private:
  std::string path(const char* name) const {
    return (fs::path(options_.out) / name).string();
  }

  void open_writers() {
    const data::TokenFileOptions made{
        .vocabulary = tokenizer_->vocab_size(),
        .tokenizer_digest = tokenizer_->digest()};
    train_ =
        std::make_unique<data::TokenFileWriter>(path("train.tokens"), made);
    // While this writer lives, no other command writes to the folder, but one may have finished
    // since check().
    expect_no_data(options_.out);
    // Without train.tokens it was left by an interrupted command.
    fs::remove(path("validation.tokens"));
    if (options_.validation > 0) {
      validation_ = std::make_unique<data::TokenFileWriter>(
          path("validation.tokens"), made);
    }
  }

  void take(const InputFile& file) {
    auto problem = file.refused;
    std::string content;
    const bool rows = is_parquet(file.path);
    if (problem.empty() && !rows) {
      auto text = text_of_file(file.path);
      content = text ? std::move(*text) : "";
      problem = text ? text_problem(content) : "cannot be read";
    }
    if (!problem.empty()) {
      if (file.named) {
        throw Error(file.path + ": expected text, found it " + problem);
      }
      report_.left_out.push_back(file);
      report_.left_out.back().refused = problem;
      return;
    }
    const auto documents = report_.documents;
    const auto tokens = report_.tokens;
    const auto each = [&](std::string_view document) { add(document); };
    if (rows) {
      for_each_parquet_row(file.path, options_.documents, each);
    } else {
      for_each_document(content, file.path, options_.documents, each);
    }
    const auto bytes = static_cast<std::int64_t>(
        rows ? fs::file_size(file.path) : content.size());
    taken_.push_back(
        {{"path", file.path},
         {"bytes", bytes},
         {"documents", report_.documents - documents},
         {"tokens", report_.tokens - tokens}});
    report_.taken += 1;
    report_.bytes += bytes;
  }

  void add(std::string_view document) {
    const auto& special = tokenizer_->special();
    auto ids = tokenizer_->encode(document);
    ids.insert(ids.begin(), special.before.begin(), special.before.end());
    ids.insert(ids.end(), special.after.begin(), special.after.end());
    if (eos_ && (special.after.empty() || special.after.back() != *eos_)) {
      ids.push_back(*eos_);
    }
    const bool held_out =
        is_for_validation(report_.documents, options_.validation);
    (held_out ? *validation_ : *train_).add(ids);
    report_.documents += 1;
    report_.tokens += static_cast<std::int64_t>(ids.size());
  }

  // train.tokens is written last: if it is there, everything is.
  void finish() {
    if (options_.tokenizer != "bytes") {
      data::copy_tokenizer(options_.tokenizer, options_.out);
    }
    if (validation_) {
      report_.validation_documents = validation_->documents();
      report_.validation_tokens = validation_->tokens();
      validation_->finish();
    }
    write_report();
    train_->finish();
  }

  void write_report() const {
    nlohmann::ordered_json json = {
        {"tokenizer", options_.tokenizer},
        {"vocabulary", report_.vocabulary},
        {"eos", eos_ ? nlohmann::ordered_json(*eos_) : nullptr},
        {"bytes", report_.bytes},
        {"documents", report_.documents},
        {"tokens", report_.tokens},
        {"validation_documents", report_.validation_documents},
        {"validation_tokens", report_.validation_tokens},
        {"taken", taken_},
        {"left_out", nlohmann::ordered_json::array()}};
    for (const auto& file : report_.left_out) {
      json["left_out"].push_back(
          {{"path", file.path}, {"reason", file.refused}});
    }
    const auto text =
        json.dump(1, ' ', false, nlohmann::json::error_handler_t::replace);
    replace_file(path("prepared.json"), text + "\n").throw_if_failed();
  }

  std::string first_reason() const {
    return report_.left_out.empty() ? ""
                                    : "; " + report_.left_out.front().path +
            ": " + report_.left_out.front().refused;
  }

  const PrepareOptions& options_;
  const std::unique_ptr<data::Tokenizer> tokenizer_;
  const std::optional<std::int64_t> eos_;
  bool made_folder_ = false;
  std::unique_ptr<data::TokenFileWriter> train_;
  std::unique_ptr<data::TokenFileWriter> validation_;  // May be null.
  nlohmann::ordered_json taken_ = nlohmann::ordered_json::array();
  PrepareReport report_;
};

}  // namespace

// A document is taken each time the number of documents so far times the share passes a whole
// number.
bool is_for_validation(std::int64_t document, double share) {
  const auto before = static_cast<double>(document);
  return std::floor((before + 1) * share) > std::floor(before * share);
}

PrepareReport prepare(
    const PrepareOptions& options,
    const std::function<void(std::size_t, std::size_t)>& progress) {
  check(options);
  return Preparation(options).run(progress);
}

}  // namespace sherd::tools
