// SPDX-License-Identifier: Apache-2.0
//
// Copies between this process and another one by a single kernel call (process_vm_readv,
// process_vm_writev). This needs the rights of a debugger, which containers and hosts may refuse: a
// caller tries first and has another way. The id of a process that has ended may refer to another
// process by then, so a caller must know by other means that the peer is alive. Thread rule: any
// thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include "base/status.h"

namespace sherd::c10d_shm {

// Memory of another process, as reinterpret_cast<uintptr_t> gave it there.
struct RemoteBytes {
  int pid = 0;
  std::uint64_t address = 0;
};

// kFailedPrecondition if the kernel refuses, kPeerLost if there is no such process, kUnavailable
// for anything else. After a failure some bytes may have been copied.
Status copy_from(const RemoteBytes& source, std::span<std::byte> target);
// Writes `source`, and then `number` to eight bytes at `mark` of the same process, in one kernel
// call: a process that is stopped by a signal meanwhile stops after both.
Status copy_to(
    const RemoteBytes& target,
    std::span<const std::byte> source,
    std::uint64_t mark,
    std::uint64_t number);

// Allows processes of the same user to copy from and to this one where only ancestors may (Yama's
// ptrace_scope 1). Nothing revokes that: the process has one such permission, which others of its
// groups may need.
void let_peers_copy();

}  // namespace sherd::c10d_shm
