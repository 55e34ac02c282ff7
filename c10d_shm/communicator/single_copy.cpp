// SPDX-License-Identifier: Apache-2.0
#include "c10d_shm/communicator/single_copy.h"

#include <sys/prctl.h>
#include <sys/uio.h>
#include <array>
#include <cerrno>
#include <cstring>
#include "base/check.h"

namespace sherd::c10d_shm {
namespace {

Status failure(const char* call, int pid, int reason) {
  const auto code = reason == EPERM || reason == ENOSYS
      ? ErrorCode::kFailedPrecondition
      : reason == ESRCH ? ErrorCode::kPeerLost
                        : ErrorCode::kUnavailable;
  return {
      code,
      str("[c10d_shm] ", call, " of process ", pid,
          " failed: ", std::strerror(reason))};
}

void* pointer(std::uint64_t address) {
  return reinterpret_cast<void*>(static_cast<std::uintptr_t>(address));
}

}  // namespace

// The kernel may stop early: at 2 GiB, and at a missing page.
Status copy_from(const RemoteBytes& source, std::span<std::byte> target) {
  std::size_t done = 0;
  while (done < target.size()) {
    const std::size_t rest = target.size() - done;
    const iovec here{target.data() + done, rest};
    const iovec there{pointer(source.address + done), rest};
    const ssize_t copied =
        ::process_vm_readv(source.pid, &here, 1, &there, 1, 0);
    if (copied < 0 && errno == EINTR) {
      continue;
    }
    if (copied <= 0) {
      return failure(
          "process_vm_readv", source.pid, copied < 0 ? errno : EFAULT);
    }
    done += static_cast<std::size_t>(copied);
  }
  return {};
}

// Not repeated if the kernel stops early: then `number` is not written.
Status copy_to(
    const RemoteBytes& target,
    std::span<const std::byte> source,
    std::uint64_t mark,
    std::uint64_t number) {
  const std::array here = {
      iovec{const_cast<std::byte*>(source.data()), source.size()},
      iovec{&number, sizeof(number)}};
  const std::array there = {
      iovec{pointer(target.address), source.size()},
      iovec{pointer(mark), sizeof(number)}};
  const ssize_t copied = ::process_vm_writev(
      target.pid, here.data(), here.size(), there.data(), there.size(), 0);
  const bool all =
      copied == static_cast<ssize_t>(source.size() + sizeof(number));
  return all
      ? Status()
      : failure("process_vm_writev", target.pid, copied < 0 ? errno : EFAULT);
}

void let_peers_copy() {
  // Fails if there is no Yama; then no permission is needed.
  ::prctl(PR_SET_PTRACER, PR_SET_PTRACER_ANY, 0, 0, 0);
}

}  // namespace sherd::c10d_shm
