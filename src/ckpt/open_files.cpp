// SPDX-License-Identifier: Apache-2.0
#include "ckpt/open_files.h"

#include <fcntl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

#include "base/check.h"

namespace sherd::ckpt {
namespace {

// A quarter of the descriptors that the process may have.
std::size_t files_kept_max() {
  rlimit limit = {};
  const bool known = ::getrlimit(RLIMIT_NOFILE, &limit) == 0;
  return std::max<std::size_t>(1, known ? limit.rlim_cur / 4 : 0);
}

bool are_too_many(int error) { return error == EMFILE || error == ENFILE; }

void check_size(
    const Descriptor& file, const std::string& path, std::int64_t bytes) {
  struct stat facts = {};
  SHERD_CHECK(
      ::fstat(file.get(), &facts) == 0 && S_ISREG(facts.st_mode) &&
          facts.st_size == bytes,
      "[ckpt] ", path, ": expected a file of ", bytes, " bytes, found ",
      S_ISREG(facts.st_mode) ? str(facts.st_size, " of them")
                             : std::string("no regular file"));
}

}  // namespace

OpenFiles::OpenFiles() : kept_max_(files_kept_max()) {}

std::shared_ptr<const Descriptor> OpenFiles::open(
    const std::string& path, std::int64_t bytes) {
  const std::scoped_lock lock(mutex_);
  if (const auto found = files_.find(path); found != files_.end()) {
    return found->second;
  }
  while (files_.size() >= kept_max_) {
    close_oldest();
  }
  auto file = std::make_shared<const Descriptor>(opened(path));
  check_size(*file, path, bytes);
  // Ranges are read mostly in order: the kernel may read further ahead.
  (void)::posix_fadvise(file->get(), 0, 0, POSIX_FADV_SEQUENTIAL);
  files_.emplace(path, file);
  order_.push_back(path);
  return file;
}

// Makes room by closing others where descriptors are short.
Descriptor OpenFiles::opened(const std::string& path) {
  for (;;) {
    Descriptor file(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
    const int error = file.open() ? 0 : errno;
    if (are_too_many(error) && !files_.empty()) {
      close_oldest();
      continue;
    }
    if (error != 0) {
      throw Error(
          str("[ckpt] ", path,
              ": expected a file of this checkpoint, opening it failed: ",
              std::strerror(error)),
          are_too_many(error) ? ErrorCode::kFailedPrecondition
                              : ErrorCode::kUnavailable);
    }
    return file;
  }
}

void OpenFiles::close_oldest() {
  files_.erase(order_.front());
  order_.pop_front();
}

}  // namespace sherd::ckpt
