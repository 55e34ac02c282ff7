// SPDX-License-Identifier: Apache-2.0
#include "launch/job_folder.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <unistd.h>
#include <array>
#include <cerrno>
#include <cstdint>
#include <cstdlib>
#include <ctime>
#include <filesystem>
#include <system_error>
#include "base/check.h"
#include "base/host.h"
#include "base/text.h"
#include "launch/program.h"

namespace sherd::launch {
namespace {

constexpr const char* kLock = "/launcher.lock";
constexpr const char* kTemporary = "sherd-run-";

// How a holder of the lock on this host describes itself, after its process id.
std::string place_of_this_process() {
  return str(" on ", host_name(), " since ");
}

// "process 71 on node3 since 2026-01-31 12:00:00 UTC".
std::string description_of_this_process() {
  const std::time_t now = std::time(nullptr);
  std::tm utc = {};
  ::gmtime_r(&now, &utc);
  char time[64] = {};
  std::strftime(time, sizeof time, "%Y-%m-%d %H:%M:%S UTC", &utc);
  return str("process ", ::getpid(), place_of_this_process(), time);
}

// What the holder of the lock wrote, if it has got that far.
std::string read_holder(const Descriptor& file) {
  char text[512] = {};
  const ssize_t count = ::pread(file.get(), text, sizeof text - 1, 0);
  std::string holder(text, count > 0 ? static_cast<std::size_t>(count) : 0);
  holder = holder.substr(0, holder.find('\n'));
  return holder.empty() ? "a process that has just begun" : holder;
}

bool write_all(const Descriptor& file, const std::string& text) {
  return ::write(file.get(), text.data(), text.size()) ==
      static_cast<ssize_t>(text.size());
}

Result<Descriptor> lock_folder(const std::string& folder) {
  const std::string path = folder + kLock;
  Descriptor file(::open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0644));
  if (!file.open()) {
    return cannot(str("open '", path, "'"));
  }
  if (::flock(file.get(), LOCK_EX | LOCK_NB) != 0) {
    if (errno != EWOULDBLOCK) {
      return cannot(str("lock '", path, "'"));
    }
    return Status(
        ErrorCode::kUnavailable,
        str("expected a folder in which no run is under way, found '", folder,
            "', where ", read_holder(file),
            " runs one; end it, or choose another --run-dir"));
  }
  if (::ftruncate(file.get(), 0) != 0 ||
      !write_all(file, description_of_this_process() + "\n")) {
    return cannot(str("write '", path, "'"));
  }
  return file;
}

bool is_own_folder(const std::string& path) {
  struct stat status = {};
  return ::lstat(path.c_str(), &status) == 0 && S_ISDIR(status.st_mode) &&
      status.st_uid == ::geteuid();
}

// A launcher writes who it is once it has locked the file, so an empty one is let alone: its
// launcher is about to lock it. Locks of other hosts may be invisible, so their folders stay.
void remove_if_abandoned(const std::string& folder) {
  if (!is_own_folder(folder)) {
    return;
  }
  const Descriptor file(
      ::open((folder + kLock).c_str(), O_RDWR | O_CLOEXEC | O_NOFOLLOW));
  if (file.open() &&
      read_holder(file).find(place_of_this_process()) != std::string::npos &&
      ::flock(file.get(), LOCK_EX | LOCK_NB) == 0) {
    std::error_code ignored;
    std::filesystem::remove_all(folder, ignored);
  }
}

void remove_abandoned_below(const std::string& parent) {
  std::error_code ignored;
  std::filesystem::directory_iterator next(parent, ignored);
  for (; next != std::filesystem::directory_iterator();
       next.increment(ignored)) {
    if (next->path().filename().string().starts_with(kTemporary)) {
      remove_if_abandoned(next->path().string());
    }
  }
}

}  // namespace

Result<JobFolder> JobFolder::open(const std::string& path) {
  std::error_code error;
  std::filesystem::create_directories(path, error);
  if (error) {
    return cannot(
        str("make the folder of the run, '", path, "'"), error.value());
  }
  SHERD_ASSIGN_OR_RETURN(Descriptor lock, lock_folder(path));
  return JobFolder(path, std::move(lock), /*is_temporary=*/false);
}

Result<JobFolder> JobFolder::make_temporary(const std::string& parent) {
  remove_abandoned_below(parent);
  std::string path = str(parent, "/", kTemporary, "XXXXXX");
  if (::mkdtemp(path.data()) == nullptr) {
    return cannot(str("make the folder of the run, '", path, "'"));
  }
  JobFolder folder(path, Descriptor(), /*is_temporary=*/true);
  SHERD_ASSIGN_OR_RETURN(folder.lock_, lock_folder(path));
  return folder;
}

JobFolder::~JobFolder() {
  if (is_temporary_ && !path_.empty()) {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }
}

Result<std::string> JobFolder::make_secret() const {
  std::array<std::uint64_t, 4> random = {};
  if (::getrandom(random.data(), sizeof random, 0) !=
      static_cast<ssize_t>(sizeof random)) {
    return cannot("get random bytes for the secret of the run");
  }
  std::string text;
  for (const std::uint64_t part : random) {
    text += hex(part);
  }
  std::error_code ignored;
  const std::string path =
      std::filesystem::absolute(path_ + "/coordinator.secret", ignored)
          .string();
  // A new file is created, since others may be able to read an existing one.
  std::filesystem::remove(path, ignored);
  const Descriptor file(
      ::open(path.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600));
  if (!file.open() || !write_all(file, text + "\n")) {
    return cannot(str("write the secret of the run, '", path, "'"));
  }
  return path;
}

}  // namespace sherd::launch
