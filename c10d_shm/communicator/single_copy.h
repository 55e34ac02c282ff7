// SPDX-License-Identifier: Apache-2.0
//
// Copies between this process and another one by one call of the kernel (process_vm_readv,
// process_vm_writev). It needs the rights of a debugger, which containers and hosts refuse at
// will: a caller tries first and has another way. The id of a process that has ended may mean
// another process by then, so a caller knows by other means that the peer is alive. Thread rule:
// any thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include "base/status.h"

namespace sherd::c10d_shm {

// Memory of another process: what reinterpret_cast<uintptr_t> gave there.
struct RemoteBytes {
  int pid = 0;
  std::uint64_t address = 0;
};

// kFailedPrecondition where the kernel refuses, kPeerLost when there is no such
// process, kUnavailable for anything else. On failure part may have been copied.
Status copy_from(const RemoteBytes& source, std::span<std::byte> target);
// Writes `source`, and then `number` to eight bytes at `mark` of the same
// process, in one call of the kernel: a process that is stopped by a signal in
// the meantime stops after both.
Status copy_to(
    const RemoteBytes& target,
    std::span<const std::byte> source,
    std::uint64_t mark,
    std::uint64_t number);

// Lets processes of the same user copy from and to this one where only
// ancestors may (Yama's ptrace_scope 1); and takes that back.
void let_peers_copy(bool allowed);

}  // namespace sherd::c10d_shm
