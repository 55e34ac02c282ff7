// SPDX-License-Identifier: Apache-2.0
#include "comm/shm/single_copy.h"

#include <sys/prctl.h>
#include <sys/uio.h>
#include <cerrno>
#include <cstring>
#include "base/check.h"

namespace sherd::comm::shm {
namespace {

using Transfer = ssize_t (*)(
    pid_t,
    const iovec*,
    unsigned long,
    const iovec*,
    unsigned long,
    unsigned long);

Status failure(const char* call, int pid, int reason) {
  const auto code = reason == EPERM || reason == ENOSYS
      ? ErrorCode::kFailedPrecondition
      : reason == ESRCH ? ErrorCode::kPeerLost
                        : ErrorCode::kUnavailable;
  return {
      code,
      str("[comm] ", call, " of process ", pid,
          " failed: ", std::strerror(reason))};
}

// The kernel may stop early: at 2 GiB, and where a page is missing.
Status transfer(
    Transfer call,
    const char* name,
    const RemoteBytes& remote,
    std::byte* local,
    std::size_t bytes) {
  std::size_t done = 0;
  while (done < bytes) {
    const iovec here{local + done, bytes - done};
    const iovec there{
        reinterpret_cast<void*>(
            static_cast<std::uintptr_t>(remote.address + done)),
        bytes - done};
    const ssize_t copied = call(remote.pid, &here, 1, &there, 1, 0);
    if (copied < 0 && errno == EINTR) {
      continue;
    }
    if (copied <= 0) {
      return failure(name, remote.pid, copied < 0 ? errno : EFAULT);
    }
    done += static_cast<std::size_t>(copied);
  }
  return {};
}

}  // namespace

Status copy_from(const RemoteBytes& source, std::span<std::byte> target) {
  return transfer(
      ::process_vm_readv, "process_vm_readv", source, target.data(),
      target.size());
}

Status copy_to(const RemoteBytes& target, std::span<const std::byte> source) {
  return transfer(
      ::process_vm_writev, "process_vm_writev", target,
      const_cast<std::byte*>(source.data()), source.size());
}

void let_peers_copy(bool allowed) {
  // Fails where there is no Yama, and nothing needs to be allowed.
  ::prctl(PR_SET_PTRACER, allowed ? PR_SET_PTRACER_ANY : 0UL, 0, 0, 0);
}

}  // namespace sherd::comm::shm
