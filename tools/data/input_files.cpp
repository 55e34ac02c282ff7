// SPDX-License-Identifier: Apache-2.0
#include "data/input_files.h"

#include <algorithm>
#include <array>
#include <filesystem>
#include <system_error>
#include <utility>
#include <sherd/base/error.h>
#include <sherd/data/tokenizer.h>
#include "base/files_below.h"

namespace sherd::tools {
namespace {

namespace fs = std::filesystem;

constexpr std::array<std::string_view, 4> kPacked = {
    ".gz", ".zst", ".xz", ".bz2"};

// Why a file of a folder is refused because of its name alone.
std::string name_problem(const fs::path& path) {
  const auto extension = path.extension().string();
  if (std::find(kPacked.begin(), kPacked.end(), extension) != kPacked.end()) {
    return "compressed: unpack it first";
  }
  return "";
}

void add_folder(const std::string& folder, std::vector<InputFile>& files) {
  for (auto& file : files_below(folder, HiddenFiles::kSkipped).value()) {
    auto problem =
        file.problem.empty() ? name_problem(file.path) : file.problem;
    files.push_back(
        {.path = std::move(file.path), .refused = std::move(problem)});
  }
}

}  // namespace

std::vector<InputFile> input_files(const std::vector<std::string>& arguments) {
  std::vector<InputFile> files;
  for (const auto& argument : arguments) {
    std::error_code failure;
    const auto kind = fs::status(argument, failure).type();
    if (kind == fs::file_type::directory) {
      add_folder(argument, files);
    } else if (kind == fs::file_type::regular) {
      files.push_back(
          {.path = argument, .refused = name_problem(argument), .named = true});
    } else {
      throw Error(
          argument + ": expected a file or folder of text, found " +
          (kind == fs::file_type::not_found ? "nothing there"
                                            : "something else"));
    }
  }
  return files;
}

std::string text_problem(std::string_view content) {
  if (content.empty()) {
    return "empty";
  }
  const auto zero = content.find('\0');
  if (zero != std::string_view::npos) {
    return "binary: a NUL at byte " + std::to_string(zero);
  }
  const auto invalid = data::first_invalid_utf8(content);
  if (invalid != content.size()) {
    return "not UTF-8 at byte " + std::to_string(invalid);
  }
  return "";
}

}  // namespace sherd::tools
