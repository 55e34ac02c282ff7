// SPDX-License-Identifier: Apache-2.0
#include "ft/coordinator/failing_disk_testing.h"

#include <sys/syscall.h>
#include <unistd.h>
#include <atomic>
#include <cerrno>

namespace sherd::ft::test {
namespace {

// Relaxed, because it orders nothing else.
std::atomic<int> sync_error{0};

int sync_or_fail(long call, int fd) {
  const int error = sync_error.load(std::memory_order_relaxed);
  if (error != 0) {
    errno = error;
    return -1;
  }
  return static_cast<int>(::syscall(call, fd));
}

}  // namespace

void fail_syncs(int error) {
  sync_error.store(error, std::memory_order_relaxed);
}

}  // namespace sherd::ft::test

extern "C" int fsync(int fd) {
  return sherd::ft::test::sync_or_fail(SYS_fsync, fd);
}
extern "C" int fdatasync(int fd) {
  return sherd::ft::test::sync_or_fail(SYS_fdatasync, fd);
}
