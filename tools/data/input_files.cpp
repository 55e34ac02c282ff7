// SPDX-License-Identifier: Apache-2.0
#include "data/input_files.h"

#include <algorithm>
#include <array>
#include <filesystem>
#include <system_error>
#include <sherd/base/error.h>
#include <sherd/data/tokenizer.h>

namespace sherd::tools {
namespace {

namespace fs = std::filesystem;

constexpr std::array<std::string_view, 4> kPacked = {
    ".gz", ".zst", ".xz", ".bz2"};

bool is_hidden(const fs::path& path) {
  return path.filename().string().starts_with(".");
}

// Why a file of a folder is refused because of its name alone.
std::string name_problem(const fs::path& path) {
  const auto extension = path.extension().string();
  if (std::find(kPacked.begin(), kPacked.end(), extension) != kPacked.end()) {
    return "compressed: unpack it first";
  }
  return "";
}

void add_folder(const fs::path& folder, std::vector<InputFile>& files) {
  std::vector<std::string> paths;
  try {
    fs::recursive_directory_iterator entry(folder);
    for (; entry != fs::recursive_directory_iterator(); ++entry) {
      std::error_code dangling;
      if (is_hidden(entry->path())) {
        entry.disable_recursion_pending();
      } else if (entry->is_regular_file(dangling)) {
        paths.push_back(entry->path().string());
      }
    }
  } catch (const fs::filesystem_error& error) {
    throw Error(
        folder.string() +
            ": expected a readable folder, found: " + error.code().message(),
        ErrorCode::kUnavailable);
  }
  std::sort(paths.begin(), paths.end());
  for (auto& path : paths) {
    const auto problem = name_problem(path);
    files.push_back(
        {.path = std::move(path), .refused = problem, .named = false});
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
