// SPDX-License-Identifier: Apache-2.0
#include "base/replace_file.h"

#include <fcntl.h>
#include <unistd.h>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <random>
#include <system_error>
#include "base/check.h"
#include "base/descriptor.h"

namespace sherd {
namespace {

constexpr std::string_view kDraftEnd = ".new";

Status failed(const std::string& path, const char* action) {
  return {
      ErrorCode::kUnavailable,
      str(path, ": expected to write it, ", action,
          " failed: ", std::strerror(errno))};
}

bool write_all(const Descriptor& file, std::string_view bytes) {
  while (!bytes.empty()) {
    const auto count = ::write(file.get(), bytes.data(), bytes.size());
    if (count < 0 && errno != EINTR) {
      return false;
    }
    bytes.remove_prefix(static_cast<std::size_t>(count < 0 ? 0 : count));
  }
  return true;
}

bool sync(const std::string& path) {
  const Descriptor file(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
  return file.open() && ::fsync(file.get()) == 0;
}

// Whether replace_file() gives such a name to the draft of a file: "a.123.new" for the prefix "a.".
bool is_draft(std::string_view name, std::string_view prefix) {
  if (!name.starts_with(prefix)) {
    return false;
  }
  const std::size_t end = name.find_first_not_of("0123456789", prefix.size());
  return end != std::string_view::npos && end > prefix.size() &&
      name.substr(end) == kDraftEnd;
}

}  // namespace

Status replace_file(const std::string& path, std::string_view content) {
  // Processes on several hosts may write the same path.
  const auto draft = str(path, ".", std::random_device()(), kDraftEnd);
  Descriptor file(
      ::open(draft.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666));
  if (!file.open()) {
    return failed(path, "open");
  }
  auto done = write_all(file, content) ? Status() : failed(path, "write");
  file.close();
  if (done.ok()) {
    done = publish_file(draft, path);
  }
  if (!done.ok()) {
    std::remove(draft.c_str());
  }
  return done;
}

Status publish_file(const std::string& draft, const std::string& path) {
  if (!sync(draft)) {
    return failed(path, "sync");
  }
  if (std::rename(draft.c_str(), path.c_str()) != 0) {
    return failed(path, "rename");
  }
  const auto folder = std::filesystem::absolute(path).parent_path().string();
  return sync(folder) ? Status() : failed(path, "sync of its folder");
}

void remove_drafts(const std::string& path) {
  const std::filesystem::path file(path);
  const std::string prefix = file.filename().string() + ".";
  std::error_code ignored;
  std::filesystem::directory_iterator next(
      std::filesystem::absolute(file, ignored).parent_path(), ignored);
  for (; next != std::filesystem::directory_iterator();
       next.increment(ignored)) {
    if (is_draft(next->path().filename().string(), prefix)) {
      std::filesystem::remove(next->path(), ignored);
    }
  }
}

}  // namespace sherd
