// SPDX-License-Identifier: Apache-2.0
//
// A disk whose syncs fail, for tests: the test program's fsync and fdatasync replace those of libc,
// also for libraries. Thread rule: any thread.
#pragma once

namespace sherd::ft::test {

// From now on every sync fails with this errno; 0 makes them work again.
void fail_syncs(int error);

}  // namespace sherd::ft::test
