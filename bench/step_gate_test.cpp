// SPDX-License-Identifier: Apache-2.0
#include "bench/step_gate.h"

#include <thread>
#include <gtest/gtest.h>
#include <sherd/base/error.h>
#include "support/scratch_folder.h"

namespace sherd::bench {
namespace {

using sherd::testing::ScratchFolder;

TEST(StepGate, AStepBeginsOnceAnotherMappingAllowsIt) {
  const ScratchFolder folder;
  StepGate gate(folder.path() + "/gate");
  const StepGate ours(folder.path() + "/gate");
  gate.open_until(2);
  ours.wait_for(1);
  ours.wait_for(2);

  std::thread other([&] { gate.open_until(3); });
  ours.wait_for(3);
  other.join();
}

TEST(StepGate, AFileThatCannotBeMadeIsAnError) {
  const ScratchFolder folder;
  EXPECT_THROW(StepGate(folder.path() + "/none/gate"), Error);
}

}  // namespace
}  // namespace sherd::bench
