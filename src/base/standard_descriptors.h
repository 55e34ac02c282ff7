// SPDX-License-Identifier: Apache-2.0
//
// Thread rule: to be called while the process has one thread.
#pragma once

#include <fcntl.h>
#include <unistd.h>
#include "base/descriptor.h"

namespace sherd {

// Opens /dev/null for those of 0, 1 and 2 that are closed, as long as the process lives. Otherwise
// a socket or a file could take such a number, and what is printed would be written into it.
// Writing fails as it does with a closed descriptor, so that lost output is still noticed.
inline void fill_standard_descriptors() {
  Descriptor next(::open("/dev/null", O_RDONLY));
  while (next.open() && next.get() <= STDERR_FILENO) {
    next.release();
    next = Descriptor(::open("/dev/null", O_RDONLY));
  }
}

}  // namespace sherd
