// SPDX-License-Identifier: Apache-2.0
#include "bench/step_gate.h"

#include <thread>
#include <gtest/gtest.h>
#include <sherd/base/error.h>
#include "support/scratch_folder.h"

namespace sherd::bench {
namespace {

using sherd::testing::ScratchFolder;

TEST(StepGate, AStepBeginsOnceAnotherAllowsIt) {
  const ScratchFolder folder;
  const auto gate = folder.path() + "/gate";
  open_gate_until(gate, 0);
  open_gate_until(gate, 2);
  wait_at_gate(gate, 1);
  wait_at_gate(gate, 2);

  std::thread other([&] { open_gate_until(gate, 3); });
  wait_at_gate(gate, 3);
  other.join();
}

TEST(StepGate, AFileThatCannotBeMadeIsAnError) {
  const ScratchFolder folder;
  EXPECT_THROW(open_gate_until(folder.path() + "/none/gate", 0), Error);
}

}  // namespace
}  // namespace sherd::bench
