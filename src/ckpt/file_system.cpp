// SPDX-License-Identifier: Apache-2.0
#include "ckpt/file_system.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>
#include <algorithm>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <system_error>
#include <thread>
#include <utility>

#include "base/check.h"
#include "base/descriptor.h"

namespace sherd::ckpt {
namespace {

namespace fs = std::filesystem;

Status failed(
    const std::string& action,
    const std::string& path,
    const std::string& why) {
  return {
      ErrorCode::kUnavailable,
      str("[ckpt] cannot ", action, " ", path, ": ", why)};
}

Status failed_by_errno(const std::string& action, const std::string& path) {
  return failed(action, path, std::strerror(errno));
}

Descriptor open_lock(const std::string& path) {
  return Descriptor(::open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0666));
}

Status taken(const std::string& folder) {
  return {
      ErrorCode::kFailedPrecondition,
      failed(
          "save to", folder, "another run does; expected a folder of its own")
          .message()};
}

// Linux writes at most this many bytes at once.
constexpr std::size_t kWriteMax = std::size_t{1} << 30;

class PosixFile final : public OutputFile {
 public:
  PosixFile(Descriptor file, std::string path)
      : file_(std::move(file)), path_(std::move(path)) {}

  Status write(const void* bytes, std::size_t count) override {
    const auto* at = static_cast<const char*>(bytes);
    while (count > 0) {
      const auto done = ::write(file_.get(), at, std::min(count, kWriteMax));
      if (done < 0 && errno == EINTR) {
        continue;
      }
      if (done <= 0) {
        return failed_by_errno("write", path_);
      }
      at += done;
      count -= static_cast<std::size_t>(done);
    }
    return {};
  }

  Status sync() override {
    return ::fsync(file_.get()) == 0 ? Status()
                                     : failed_by_errno("sync", path_);
  }

 private:
  Descriptor file_;
  const std::string path_;
};

class PosixFileSystem final : public FileSystem {
 public:
  Status make_folder(const std::string& path) override {
    std::error_code error;
    fs::create_directories(path, error);
    if (error || !fs::is_directory(path, error)) {
      return failed(
          "make folder", path, error ? error.message() : "it is a file");
    }
    return {};
  }

  Result<std::unique_ptr<OutputFile>> create(const std::string& path) override {
    Descriptor file(
        ::open(path.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666));
    if (!file.open()) {
      return failed_by_errno("create", path);
    }
    return std::unique_ptr<OutputFile>(
        std::make_unique<PosixFile>(std::move(file), path));
  }

  Status sync_folder(const std::string& path) override {
    const Descriptor folder(
        ::open(path.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
    return folder.open() && ::fsync(folder.get()) == 0
        ? Status()
        : failed_by_errno("sync folder", path);
  }

  Status rename(const std::string& from, const std::string& to) override {
    return ::rename(from.c_str(), to.c_str()) == 0
        ? Status()
        : failed_by_errno("rename " + from + " to", to);
  }

  Result<bool> exchange(const std::string& a, const std::string& b) override {
    if (::renameat2(
            AT_FDCWD, a.c_str(), AT_FDCWD, b.c_str(), RENAME_EXCHANGE) == 0) {
      return true;
    }
    if (errno == EINVAL || errno == ENOSYS || errno == EOPNOTSUPP) {
      return false;
    }
    return failed_by_errno("exchange " + a + " and", b);
  }

  Status remove(const std::string& path) override {
    std::error_code error;
    fs::remove_all(path, error);
    return error ? failed("remove", path, error.message()) : Status();
  }

  Result<bool> exists(const std::string& path) override {
    std::error_code error;
    const bool found = fs::exists(path, error);
    return error ? Result<bool>(failed("look for", path, error.message()))
                 : Result<bool>(found);
  }

  Result<std::vector<std::string>> list(const std::string& path) override {
    std::vector<std::string> names;
    std::error_code error;
    for (auto entry = fs::directory_iterator(path, error);
         !error && entry != fs::directory_iterator(); entry.increment(error)) {
      names.push_back(entry->path().filename().string());
    }
    if (error && error != std::errc::no_such_file_or_directory) {
      return failed("list", path, error.message());
    }
    std::ranges::sort(names);
    return names;
  }

  Result<std::int64_t> free_bytes(const std::string& path) override {
    struct statvfs found = {};
    if (::statvfs(path.c_str(), &found) != 0) {
      return failed_by_errno("ask for the free space of", path);
    }
    return static_cast<std::int64_t>(found.f_bavail * found.f_frsize);
  }
};

}  // namespace

std::unique_ptr<FileSystem> make_posix_file_system() {
  return std::make_unique<PosixFileSystem>();
}

FolderLock::FolderLock(Descriptor file, std::string path)
    : file_(std::move(file)), path_(std::move(path)), owner_(::getpid()) {}

FolderLock& FolderLock::operator=(FolderLock&& other) noexcept {
  if (this != &other) {
    unlock();
    file_ = std::move(other.file_);
    path_ = std::move(other.path_);
    owner_ = other.owner_;
  }
  return *this;
}

FolderLock::~FolderLock() { unlock(); }

bool FolderLock::in_place() const {
  struct stat locked = {};
  struct stat found = {};
  return ::fstat(file_.get(), &locked) == 0 &&
      ::stat(path_.c_str(), &found) == 0 && locked.st_dev == found.st_dev &&
      locked.st_ino == found.st_ino;
}

// Closing alone would leave the lock to children, who share the open file.
void FolderLock::unlock() {
  if (file_.open() && ::getpid() == owner_) {
    (void)::flock(file_.get(), LOCK_UN);
  }
}

Result<FolderLock> lock_folder(const std::string& path) {
  const auto file_path = path + "/.lock";
  Descriptor file = open_lock(file_path);
  if (!file.open()) {
    return failed_by_errno("open", file_path);
  }
  if (::flock(file.get(), LOCK_EX | LOCK_NB) != 0) {
    return errno == EWOULDBLOCK ? taken(path)
                                : failed_by_errno("lock", file_path);
  }
  return FolderLock(std::move(file), file_path);
}

Result<FolderLock> share_folder(
    const std::string& path, std::uint64_t run, Duration timeout) {
  const auto file_path = path + "/.run";
  Descriptor file = open_lock(file_path);
  if (!file.open()) {
    return failed_by_errno("open", file_path);
  }
  const SteadyClock clock;
  const auto deadline = clock.now() + timeout;
  for (;;) {
    std::uint64_t found = 0;
    const bool shares = ::flock(file.get(), LOCK_SH | LOCK_NB) == 0;
    if (shares && ::pread(file.get(), &found, sizeof(found), 0) > 0 &&
        found == run) {
      return FolderLock(std::move(file), file_path);
    }
    // Only without any other holder may a run write its number. It then shares the lock as all do,
    // and finds that number, unless another run was faster in between.
    if (shares && ::flock(file.get(), LOCK_EX | LOCK_NB) == 0) {
      if (::pwrite(file.get(), &run, sizeof(run), 0) !=
          static_cast<ssize_t>(sizeof(run))) {
        return failed_by_errno("write", file_path);
      }
      continue;
    }
    if (errno != EWOULDBLOCK) {
      return failed_by_errno("lock", file_path);
    }
    ::flock(file.get(), LOCK_UN);
    if (clock.now() >= deadline) {
      return taken(path);
    }
    std::this_thread::sleep_for(kLockPollInterval);
  }
}

}  // namespace sherd::ckpt
