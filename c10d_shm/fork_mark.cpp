// SPDX-License-Identifier: Apache-2.0
#include "c10d_shm/fork_mark.h"

#include <sys/mman.h>
#include <cerrno>
#include <cstddef>
#include <cstring>
#include "base/check.h"

namespace sherd::c10d_shm {
namespace {

constexpr std::size_t kBytes = 4096;  // The kernel rounds it up to a page.

}  // namespace

ForkMark::ForkMark() {
  void* page = ::mmap(
      nullptr, kBytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1,
      0);
  SHERD_CHECK_AS(
      kUnavailable, page != MAP_FAILED,
      "[c10d_shm] expected a page of memory, found none: ",
      std::strerror(errno));
  // Without it, as in some sandboxes, a child is not told from its parent.
  (void)::madvise(page, kBytes, MADV_WIPEONFORK);
  made_here_ = static_cast<int*>(page);
  *made_here_ = 1;
}

ForkMark::~ForkMark() { ::munmap(made_here_, kBytes); }

void ForkMark::expect_not_forked() const {
  SHERD_CHECK_AS(
      kFailedPrecondition, !in_child(),
      "[c10d_shm] expected the process that made the group, found a forked "
      "child of it, which is no rank: communicate in the process that forked, "
      "or start the other one by spawn");
}

}  // namespace sherd::c10d_shm
